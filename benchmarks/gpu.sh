#!/usr/bin/env bash
# All GPU benchmarks in at most 8 minutes; results go to benchmarks/results/<card>-<date>.json and a table.
#   benchmarks/gpu.sh          on a CUDA machine
#   benchmarks/gpu.sh --dry    the same script with tiny shapes on a CPU, to test it
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
out=${OUT:-benchmarks/results}

if [ "${1:-}" = "--dry" ]; then
  out=$(mktemp -d)
  large=dry small=dry repeats=1 seeds=1
  protocol=(--tasks 2 --rounds 1)
else
  "$python" -c 'import torch, sys; sys.exit(0 if torch.cuda.is_available() else "no CUDA device; try --dry")'
  large=vit-b small=vit-small repeats=1 seeds=3
  protocol=(--tasks 10 --rounds 5)
fi
card=$("$python" -c 'import torch; print(torch.cuda.get_device_name(0).replace(" ", "-") if torch.cuda.is_available() else "cpu")')
file="$out/$card-$(date -u +%Y-%m-%d).json"
rm -f "$file"

"$python" -m benchmarks.round --workload "$large" --methods fedavg,sum --json "$file"
"$python" -m benchmarks.round --workload "$small" --json "$file"
"$python" -m benchmarks.round --workload "$small" --methods fedavg --capture off --json "$file"
"$python" -m benchmarks.protocol --workload "$small" "${protocol[@]}" --json "$file"
"$python" -m benchmarks.plain_loop --workload "$small" --repeats "$repeats" --json "$file"
"$python" -m benchmarks.aggregation --json "$file"
"$python" -m benchmarks.task_end --json "$file"
"$python" -m benchmarks.same_accuracy --seeds "$seeds" --json "$file"
if [ "${1:-}" != "--dry" ]; then
  "$python" -m benchmarks.plain_loop --workload "$large" --repeats 1 --json "$file"
fi
"$python" -m benchmarks.startup --json "$file"
echo "wrote $file"
