"""A laboratory of tiny plugins, installed for real, and suites written to files."""

import textwrap
from pathlib import Path

import pytest

from fcilbench.errors import USAGE
from fcilbench.suite.expand import expand
from fcilbench.suite.load import load_suite
from fcilbench.suite.yaml import InvalidSuiteError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FCILBENCH_CACHE", str(tmp_path / "cache"))


LAB = '''
from pathlib import Path
from fcilbench.spec.params import Field, Params, Space
from fcilbench.spec.plugin import Plugin
from fcilbench.errors import PrerequisiteError


class Mean(Plugin):
    """Average."""


class Ring(Plugin):
    """Ring."""
    version = "3"

    class Params(Params):
        lambda_s: float = Field(0.5, ge=0.0, le=1.0, space=Space(low=0.1, high=1.0))
        k_pct: float = Field(0.1, gt=0.0)
        mode: str = "fast"


class Needy(Plugin):
    """Has a required parameter, and one that the protocol has too."""

    class Params(Params):
        must: int
        batch_size: int = 3


class Ten(Plugin):
    """Ten classes."""

    class Params(Params):
        train_per_class: int | None = None

    @classmethod
    def facts(cls):
        return {"classes": 10, "default_tasks": 5, "fingerprint": "sha256:ten", "train": 1000, "modality": "vision"}


class Cars(Ten):
    """196 classes."""

    @classmethod
    def facts(cls):
        return {"classes": 196, "default_tasks": [20] * 9 + [16], "fingerprint": "", "train": 8144}


class Own(Plugin):
    """A data set by parameters."""

    class Params(Params):
        size: int

    def instance_facts(self):
        return {"classes": self.params.size, "default_tasks": 1, "fingerprint": f"sha256:{self.params.size}"}


class Net(Plugin):
    """A backbone."""

    class Params(Params):
        width: int = 8
        weights: Path | None = None

    def files(self):
        return [self.params.weights] if self.params.weights else []

    def identity(self):
        values = super().identity()
        if self.params.weights:
            if not self.params.weights.exists():
                raise PrerequisiteError(f"weights {self.params.weights} are missing", hint="fetch them")
            values["weights"] = self.params.weights.read_text()
        return values


class Reader(Plugin):
    """A backbone that reads texts, and arrays of one shape."""

    @classmethod
    def facts(cls):
        return {"reads": ["text", "array"], "input_shape": [2, 30]}


class Waves(Ten):
    """Arrays."""

    class Params(Params):
        steps: int = 30

    def instance_facts(self):
        return {"modality": "array", "shape": [2, self.params.steps]}


class Clean(Plugin):
    """Nothing."""


class Shift(Plugin):
    """Shift."""

    class Params(Params):
        clients: int = 1
'''

POINTS = {
    "aggregators": {"mean": "Mean", "ring": "Ring", "needy": "Needy"},
    "datasets": {"ten": "Ten", "cars": "Cars", "own": "Own", "waves": "Waves"},
    "backbones": {"net": "Net", "reader": "Reader"},
    "stressors": {"clean": "Clean", "shift": "Shift"},
}

BASE = """\
fcilbench: 1
name: test
protocol: {clients: 4, rounds: 2}
grid:
  dataset: [ten]
  backbone: [net]
  partition: [{dirichlet: 0.5}]
  aggregator: [mean, ring]
  stress: [clean]
"""


def points(module):
    return {kind: {name: f"{module}:{value}" for name, value in names.items()} for kind, names in POINTS.items()}


@pytest.fixture(scope="session")
def lab_site(put, tmp_path_factory):
    """A folder with the laboratory installed in it, and a cache that its tests share."""
    return put(tmp_path_factory.mktemp("lab"), "lab", {"lab_module.py": LAB}, points("lab_module"))


@pytest.fixture
def lab(lab_site, monkeypatch):
    """Puts the laboratory on the search path; returns its module's file."""
    monkeypatch.syspath_prepend(str(lab_site))
    monkeypatch.setenv("FCILBENCH_CACHE", str(lab_site / "cache"))
    return lab_site / "lab_module.py"


@pytest.fixture
def own_lab(install):
    """Like `lab`, for tests that edit it."""
    return install("lab", {"own_lab.py": LAB}, points("own_lab")) / "own_lab.py"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Returns `write(text, name)`: a suite file in the current folder, by its relative path."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def make(text, name="s.yaml"):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return make


@pytest.fixture
def base():
    """The text of a valid suite of two cells."""
    return BASE


@pytest.fixture
def problems(lab, write):
    """Returns `problems(text, *overrides)`: what is wrong with an invalid suite, line by line."""

    def make(text, *overrides):
        with pytest.raises(InvalidSuiteError) as hit:
            expand(load_suite(write(text), overrides))
        assert hit.value.exit_code == USAGE
        return [str(problem) for problem in hit.value.problems]

    return make
