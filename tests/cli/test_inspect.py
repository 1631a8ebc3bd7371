"""Which plugin reads what a person names to `data inspect`."""

import pytest

from fcilbench.errors import Problem
from fcilbench.registry import catalog
from fcilbench.workflow.survey import inspect_data


@pytest.mark.parametrize(
    ("name", "plugin"),
    [("table", "csv"), ("far", "csv"), ("gone.csv", "csv"), ("v1.0", "image-folder"), ("gone", "image-folder")],
)
def test_a_file_is_a_table_whatever_its_name(tmp_path, monkeypatch, name, plugin):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "far").touch()
    (tmp_path / "table").touch()
    (tmp_path / "v1.0").mkdir()
    monkeypatch.setenv("FCILBENCH_DATA", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "resolve", lambda ref, options: catalog.Resolved(problems=(Problem("no"),)))
    (found,) = inspect_data(tmp_path.joinpath(name).relative_to(tmp_path))
    assert found.plugin == f"fcilbench/{plugin}"
