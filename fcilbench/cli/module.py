"""`fcilbench module`: writes and reads the deployable module of a finished cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcilbench.cli import console, options
from fcilbench.errors import PrerequisiteError, UsageError
from fcilbench.results.chosen import find_row
from fcilbench.results.store import Store

if TYPE_CHECKING:
    from fcilbench.federation.outcome import ModuleFile

app = options.group("Write and read the deployable module of a finished cell.")


@options.command(app, "module export 9f2c -o module.safetensors")
def export(
    cell: options.CellId,
    output: options.OutputFile = None,
    out: options.Out = options.RESULTS,
) -> None:
    """Write the module of a cell that ran with `runtime: {keep_model: true}`; by default to `CELL.safetensors`.

    For SUM, it holds tau_uni in fp16 on its support, a mask and a scale for each task, and the head, without theta_pre.
    Exit codes: 0; 2 if there is no such cell; 5 if the cell kept no model.
    """
    from fcilbench.federation.outcome import MODULE, ModuleFile, read_module, write_module

    store = Store(out)
    row = find_row(store, cell)
    if row.status != "ok":
        raise UsageError(f"cell {row.cell_id[:12]} is {row.status}: it deploys nothing")
    kept = store.cell_dir(row.cell_id) / MODULE
    again = "run it again with -s runtime.keep_model=true --rerun all"
    if not kept.is_file():
        raise PrerequisiteError(f"{kept} does not exist: the cell ran without keep_model", hint=again)
    found = read_module(kept)
    if found.facts["model"] != row.model_digest:
        raise PrerequisiteError(f"{kept} is not the model of this row", hint=again)
    path, method = output or Path(f"{row.cell_id[:12]}.safetensors"), row.plugins["aggregator"]
    about = {"cell": row.cell_id, "method": method.name, "version": method.version}
    write_module(path, ModuleFile(found.tensors, {**about, **found.facts}))
    console.show([f"{path}: {_summary(read_module(path))}"])


@options.command(app, "module inspect module.safetensors")
def inspect(
    file: Annotated[Path, typer.Argument(help="Module file.", metavar="FILE", show_default=False)],
    form: options.Format = options.Form.TABLE,
) -> None:
    """Print the tensors of a module file and its size, packed and dense.

    Exit codes: 0; 2 if it is not a module file.
    """
    from fcilbench.federation.outcome import read_module

    found = read_module(file)
    headers = ("tensor", "dtype", "shape", "bytes")
    rows = [
        (name, str(tensor.dtype).removeprefix("torch."), str([*tensor.shape]), tensor.numel() * tensor.element_size())
        for name, tensor in found.tensors.items()
    ]
    records = [dict(zip(("name", *headers[1:]), row, strict=True)) for row in rows]
    sizes = {"file_bytes": found.nbytes}
    if found.dense_nbytes is not None:
        sizes["dense_bytes"] = found.dense_nbytes
    console.show_list(form, headers, rows, key="tensors", records=records, right=(3,), **found.facts, **sizes)
    if form in (options.Form.TABLE, options.Form.MD):
        about = f"{found.facts['method']} of cell {found.facts['cell'][:12]}: " if "cell" in found.facts else ""
        console.show([f"{about}{_summary(found)}"])


def _summary(found: ModuleFile) -> str:
    if found.dense_nbytes is None:
        return f"{found.nbytes:,} bytes, the global model"
    return f"{found.nbytes:,} bytes packed, {found.dense_nbytes:,} dense, {len(found.tasks)} tasks"
