"""`plugins new` writes a package that installs, passes its own tests and runs, on every commit."""

import pytest

from fcilbench.errors import UsageError
from fcilbench.testing.scaffold import write


@pytest.mark.slow
def test_a_scaffolded_package_installs_and_passes_the_kit(empty_site):
    site = empty_site
    done = site.fcilbench("plugins", "new", "acme-two/my-method")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "wrote acme-two/"
    project = site.folder / "acme-two"
    site.install(project)
    tested = site.pytest(project)
    assert tested.returncode == 0, tested.stdout
    judged = site.fcilbench("plugins", "test", "acme-two/my-method", "-q")
    assert judged.returncode == 0, judged.stdout
    assert "BROKEN" not in judged.stdout
    shown = site.fcilbench("plugins", "show", "my-method")
    assert "exponent of the sample counts" in shown.stdout
    again = site.fcilbench("plugins", "new", "acme-two/my-method")
    assert (again.returncode, again.stdout) == (2, "")


def test_the_files_of_a_package(tmp_path):
    folder = write("gossip_2", tmp_path)
    assert folder.name == "fcilbench-gossip-2"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        *("pyproject.toml", "fcilbench_gossip_2.py", "tests/test_gossip_2.py", "README.md"),
        *(".github/workflows/test.yml", ".gitignore"),
    }
    texts = "".join((folder / name).read_text() for name in files)
    assert 'gossip_2 = "fcilbench_gossip_2:Gossip2"' in texts
    assert 'plugin = "fcilbench-gossip-2/gossip_2"' in texts
    assert "$" not in texts.replace("$ pip", "").replace("$ pytest", "").replace("$ fcilbench", "")
    assert len((folder / "fcilbench_gossip_2.py").read_text().splitlines()) < 40


@pytest.mark.parametrize("name", ["Gossip", "acme/2x", "fcilbench/gossip", "a b", "../x", ""])
def test_names_that_cannot_be_used_are_refused(tmp_path, name):
    with pytest.raises(UsageError):
        write(name, tmp_path)
    assert list(tmp_path.iterdir()) == []
