"""`plugins new` writes plugins that install, pass their own tests and can be named in a suite, on every commit."""

import tomllib

import pytest

from fcilbench.cli.scaffold import write
from fcilbench.errors import UsageError


@pytest.mark.slow
def test_a_plugin_of_each_kind_in_one_package_install_and_pass_the_kit(new_cli, python, pip_install, tmp_path):
    cli, project = new_cli(tmp_path, tmp_path), tmp_path / "acme-two"
    done = cli("plugins", "new", "acme-two/my-method")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["wrote acme-two/", "       acme_two/my_method.py"]
    names = {"backbone": "tiny", "dataset": "stripes", "stressor": "late", "executor": "queue", "selector": "nearest"}
    for kind, name in {**names, "board": "per-gb", "tracker": "notes"}.items():
        done = new_cli(project, tmp_path)("plugins", "new", f"acme-two/{name}", "--kind", kind)
        assert done.returncode == 0, done.stderr
    pip_install(cli, project)
    tested = python(cli, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=project)
    assert tested.returncode == 0, tested.stdout
    assert "failed" not in tested.stdout
    assert "warning" not in tested.stdout
    for kind, name in (("boards", "per-gb"), ("trackers", "notes"), ("executors", "queue")):
        checked = cli("plugins", "test", f"acme-two/{name}", "--kind", kind)
        assert checked.returncode == 0, checked.stdout
    shown = cli("plugins", "show", "my-method")
    assert "exponent of the sample counts" in shown.stdout
    again = cli("plugins", "new", "acme-two/my-method")
    assert (again.returncode, again.stdout) == (2, "")


def test_the_files_of_a_package(tmp_path):
    name, (folder, *_) = write("gossip_2", tmp_path)
    assert (name, folder.name) == ("fcilbench-gossip-2/gossip_2", "fcilbench-gossip-2")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        *("pyproject.toml", "fcilbench_gossip_2/__init__.py", "fcilbench_gossip_2/gossip_2.py"),
        *("tests/test_gossip_2.py", "README.md", ".github/workflows/test.yml", ".gitignore"),
    }
    texts = "".join((folder / name).read_text() for name in files)
    assert 'gossip_2 = "fcilbench_gossip_2.gossip_2:Gossip2"' in texts
    assert 'plugin = "fcilbench-gossip-2/gossip_2"' in texts
    assert "$" not in texts.replace("$ pip", "").replace("$ pytest", "").replace("$ fcilbench", "")
    assert len((folder / "fcilbench_gossip_2" / "gossip_2.py").read_text().splitlines()) < 40


def test_a_second_plugin_is_added_to_an_existing_project_and_nothing_is_overwritten(tmp_path):
    (tmp_path / "src" / "acme_fcil").mkdir(parents=True)
    toml = tmp_path / "pyproject.toml"
    group = '[project.entry-points."fcilbench.aggregators"] # ours'
    toml.write_text(f'[project]\nname = "Acme_FCIL"\n\n{group}\na = "b:C"\n')
    write("acme-fcil/second", tmp_path)
    write("acme-fcil/tiny", tmp_path, "backbone")
    groups = tomllib.loads(toml.read_text())["project"]["entry-points"]
    assert groups == {
        "fcilbench.aggregators": {"a": "b:C", "second": "acme_fcil.second:Second"},
        "fcilbench.backbones": {"tiny": "acme_fcil.tiny:Tiny"},
    }
    assert "# ours" in toml.read_text()
    assert (tmp_path / "src" / "acme_fcil" / "tiny.py").is_file()
    assert "BackboneConformance" in (tmp_path / "tests" / "test_tiny.py").read_text()
    before = toml.read_text()
    for name, kind, text in (
        ("acme-fcil/tiny", "backbone", "tiny.py exists"),
        ("acme-fcil/a", "aggregator", "already registers 'a'"),
        ("acme-fcil/x", "boart", r"no scaffold for 'boart' \(did you mean 'board'"),
    ):
        with pytest.raises(UsageError, match=text):
            write(name, tmp_path, kind)
    assert toml.read_text() == before


def test_a_folder_that_is_no_such_project_is_left_alone(tmp_path):
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "notes.txt").touch()
    with pytest.raises(UsageError, match="has no package folder acme/"):
        write("acme/x", tmp_path)
    (tmp_path / "acme" / "acme").mkdir()
    with pytest.raises(UsageError, match=r"pyproject\.toml is not the project acme"):
        write("acme/x", tmp_path)
    assert sorted(path.name for path in (tmp_path / "acme").rglob("*")) == ["acme", "notes.txt"]


@pytest.mark.parametrize("name", ["Gossip", "acme/2x", "fcilbench/gossip", "a b", "../x", ""])
def test_names_that_cannot_be_used_are_refused(tmp_path, name):
    with pytest.raises(UsageError):
        write(name, tmp_path)
    assert list(tmp_path.iterdir()) == []
