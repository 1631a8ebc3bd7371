"""A real supervisor process: `python supervise.py STORE JOBS CELL...`, each cell as `name=behaviour,behaviour`."""

import importlib.util
import sys
from pathlib import Path

from fcilbench.execution.base import RunOptions
from fcilbench.execution.supervisor import run_plan
from fcilbench.results.store import Store

here = Path(__file__).parent
spec = importlib.util.spec_from_file_location("conftest", here / "conftest.py")
conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conftest)

store = Store(Path(sys.argv[1]))
kit = conftest.Kit(store)
cells = [kit.cell(name, script.split(",")) for name, _, script in (text.partition("=") for text in sys.argv[3:])]
known = store.latest()
todo = [cell for cell in cells if (row := known.get(kit.id(cell.aggregator.label))) is None or row.status != "ok"]
options = RunOptions(worker=(sys.executable, str(here / "fake_worker.py")), jobs=int(sys.argv[2]))
assert "torch" not in sys.modules
sys.exit(run_plan(kit.plan(*todo), store, options=options).exit_code)
