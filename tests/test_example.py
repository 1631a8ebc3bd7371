"""The example notebook runs from top to bottom, and the tables that it makes are those of its suite."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "example.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_and_no_output_is_committed(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    check = (
        "assert len(rows) == 6 and set(rows.status) == {'ok'}\n"
        "assert len(matrices) == 3 * 6 * 3\n"  # identities, cells, entries of the matrix of two tasks
        "assert set(faa.index) == {'fedavg', 'ncm', 'sum'}\n"
        "assert fcilbench.run('example.yaml', out='example-results').rows.equals(rows)\n"
    )
    notebook.cells.append(nbformat.v4.new_code_cell(check))
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    pictures = [each.data for cell in cells for each in cell.outputs if "image/svg+xml" in each.get("data", {})]
    assert len(pictures) == 1
    assert "ncm (control)" in pictures[0]["image/svg+xml"]
    printed = "".join(each.get("text", "") for cell in cells for each in cell.outputs)
    assert "Accuracy board" in printed
