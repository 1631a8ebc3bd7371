import json
import os
import sys
import zlib
from pathlib import Path

import pytest

from fcilbench.errors import Problem
from fcilbench.registry import digest
from fcilbench.registry.catalog import Resolved, describe, resolve, session
from fcilbench.registry.entrypoints import lookup
from fcilbench.worker import process
from fcilbench.worker.describe import answer

RING = '''
"""A module."""
print("noise on stdout while importing")
from pathlib import Path
from fcilbench.spec.params import Field, Params, Space
from fcilbench.spec.plugin import Plugin
from fcilbench.errors import PrerequisiteError, UsageError
import hashlib

class Gossip(Plugin):
    """Average with the ring neighbours.

    More.
    """

    version = "7"

    class Params(Params):
        neighbours: int = Field(1, ge=0, le=9, description="clients on either side", source="Table 2",
                                space=Space(low=0, high=3))
        lambda_s: float = Field(0.5, ge=0.0, le=1.0)
        weights: Path | None = None
        shape: tuple[int, ...] = (1, 2)
        flag: bool = False

    @classmethod
    def facts(cls):
        return {"server": "none"}

    def files(self):
        return [self.params.weights] if self.params.weights else []

    def identity(self):
        values = super().identity()
        if self.params.weights:
            if not self.params.weights.exists():
                raise PrerequisiteError(f"weights {self.params.weights} are missing", hint="fetch them")
            values["weights"] = "sha256:" + hashlib.sha256(self.params.weights.read_bytes()).hexdigest()
        if self.params.neighbours == 8:
            raise UsageError("eight is too many")
        if self.params.neighbours == 9:
            raise ZeroDivisionError("nine")
        return values
'''


@pytest.fixture
def gossip(install, request):
    module = f"acme_{zlib.crc32(request.node.name.encode())}"
    install("acme", {f"{module}.py": RING}, {"aggregators": {"gossip": f"{module}:Gossip"}})
    return lookup("aggregators", "gossip")


@pytest.fixture
def asked(monkeypatch):
    """The questions that reach a worker."""
    questions = []
    original = process.Asker.ask
    monkeypatch.setattr(
        process.Asker, "ask", lambda self, question: questions.append(question) or original(self, question)
    )
    return questions


def test_describe(gossip):
    (found,) = describe([gossip])
    assert found.problem is None
    assert (found.version, found.summary, found.facts) == ("7", "Average with the ring neighbours.", {"server": "none"})
    assert found.field_names == ("neighbours", "lambda_s", "weights", "shape", "flag")
    first = found.schema["properties"]["neighbours"]
    assert (first["type"], first["default"], first["maximum"]) == ("integer", 1, 9)
    assert (first["description"], first["fcilbench_source"]) == ("clients on either side", "Table 2")
    assert first["fcilbench_space"] == {"low": 0.0, "high": 3.0, "log": False}
    line = 1 + RING.splitlines().index("class Gossip(Plugin):")
    assert found.origin.endswith(f"{gossip.module}.py:{line}")
    assert found.code_digest == digest.code_digest(gossip.module)
    assert gossip.module not in sys.modules


def test_resolve_fills_defaults_in(gossip):
    found = resolve(gossip, {"lambda_s": 1})
    assert not found.problems
    assert found.params == {"neighbours": 1, "lambda_s": 1.0, "weights": None, "shape": [1, 2], "flag": False}
    assert isinstance(found.params["lambda_s"], float)
    assert found.identity == {"lambda_s": 1.0}
    assert found.version == "7"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"lambda_S": 1}, Problem("unknown key 'lambda_S' (did you mean 'lambda_s'?)", ("lambda_S",), key=True)),
        ({"neighbours": 10}, Problem("neighbours: 10 is not less than or equal to 9", ("neighbours",))),
        ({"lambda_s": float("nan")}, Problem("lambda_s: NaN is not a finite number", ("lambda_s",))),
        ({"shape": [1, "x"]}, Problem('shape.1: "x" is not a valid integer', ("shape", 1))),
        ({"neighbours": 8}, Problem("eight is too many", ())),
    ],
)
def test_invalid_options(gossip, options, problem):
    found = resolve(gossip, options)
    assert found == Resolved(problems=(problem,))


def test_all_problems_of_one_plugin_are_reported_and_a_crash_is_its_fault(gossip):
    several, crash = resolve(gossip, {"lambda_s": 2, "neighbours": -1, "nope": 0}), resolve(gossip, {"neighbours": 9})
    assert [problem.path for problem in several.problems] == [("neighbours",), ("lambda_s",), ("nope",)]
    assert crash.prerequisite
    assert crash.problems[0].message == "plugin acme/gossip is broken: ZeroDivisionError: nine"


def test_order_is_kept_and_each_question_is_asked_once_in_an_environment(gossip, asked, install):
    values = [0.1, 0.2, 0.1, 0.3]
    found = [resolve(gossip, {"lambda_s": value}) for value in values]
    assert [each.params["lambda_s"] for each in found] == values
    first = describe([gossip])
    assert len(asked) == 4
    assert (resolve(gossip, {"lambda_s": 0.1}), describe([gossip])) == (found[0], first)
    assert len(asked) == 4  # all from the cache
    install("unrelated", {}, {})
    assert describe([gossip])[0].problem is None
    assert len(asked) == 5


def test_an_edit_of_the_source_is_seen(gossip, install):
    before = resolve(gossip, {})
    path = Path(sys.path[0]) / f"{gossip.module}.py"
    path.write_text(path.read_text().replace("Field(0.5", "Field(0.75").replace("== 8", "== 7"))
    after = resolve(gossip, {})
    assert (before.params["lambda_s"], after.params["lambda_s"]) == (0.5, 0.75)
    assert before.code_digest != after.code_digest


def test_weights_are_identified_by_content(gossip, tmp_path, monkeypatch):
    weights = tmp_path / "w.bin"
    use = {"weights": str(weights)}
    missing = resolve(gossip, use)
    assert missing.prerequisite
    assert missing.problems == (Problem(f"weights {weights} are missing", hint="fetch them"),)
    weights.write_bytes(b"abc")
    found = resolve(gossip, use)  # the failure was not cached
    # SHA-256 of "abc", FIPS 180-2 appendix B.1
    assert found.identity["weights"] == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    weights.write_bytes(b"abd")
    os.utime(weights, ns=(1, 1))
    other = resolve(gossip, use)
    assert other.identity["weights"] != found.identity["weights"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "w.bin").write_bytes(b"abc")
    os.utime(tmp_path / "a" / "w.bin", ns=(1, 1))
    for folder, expected in ((tmp_path, other), (tmp_path / "a", found)):  # a relative path is another file there
        monkeypatch.chdir(folder)
        assert resolve(gossip, {"weights": "w.bin"}).identity["weights"] == expected.identity["weights"]


def test_a_corrupt_or_unwritable_cache_is_ignored(gossip, tmp_path, monkeypatch):
    expected = resolve(gossip, {})
    entries = list((tmp_path / "cache").rglob("*.json"))
    assert len(entries) == 1
    for content in ("{", "[]", '{"stamps": [], "answer": 3}', '{"stamps": [[]], "answer": {}}', "null"):
        entries[0].write_text(content)
        assert resolve(gossip, {}) == expected
    assert json.loads(entries[0].read_text())["answer"]["version"] == "7"
    assert not list((tmp_path / "cache").rglob("*.tmp"))
    monkeypatch.setenv("FCILBENCH_CACHE", str(entries[0]))
    assert resolve(gossip, {}) == expected


BROKEN = {
    "raises": ("import no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module_here'"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "dies": ("import os, sys; sys.stderr.write('farewell\\n'); sys.stderr.flush(); os._exit(7)", "code 7: farewell"),
    "no_plugin": ("class P: version = '1'", "P does not derive from fcilbench.api.Plugin"),
    "version": (
        "from fcilbench.spec.plugin import Plugin\nclass P(Plugin):\n    version = 2",
        "version = 2 must be a non-empty string",
    ),
    "facts": (
        "from fcilbench.spec.plugin import Plugin\nclass P(Plugin):\n    @classmethod\n    def facts(cls):\n"
        "        return {'a': {1}}",
        "facts() is not JSON-compatible",
    ),
    # A method that trained as plain FedAvg under its own name.
    "misspelt": (
        "from fcilbench.api import Aggregator\nclass P(Aggregator):\n    def agregate(self, updates, server): pass",
        "method `agregate` of class P is no hook; did you mean `aggregate`? Name helpers with a leading underscore",
    ),
}


def test_broken_plugins_are_described_and_hurt_no_other(gossip, install):
    points = {name.replace("_", "-"): f"bad_{name}:P" for name in BROKEN}
    install("bad", {f"bad_{name}.py": source for name, (source, _) in BROKEN.items()}, {"aggregators": points})
    refs = [*(lookup("aggregators", name) for name in points), gossip]
    *bad, good = describe(refs)
    for found, (_, reason) in zip(bad, BROKEN.values(), strict=True):
        assert reason in found.problem
    assert good.problem is None
    *bad_uses, good_use = (resolve(ref, {}) for ref in refs)
    assert all(found.problems and found.prerequisite for found in bad_uses)
    assert "plugin bad/raises is broken: ModuleNotFoundError" in bad_uses[0].problems[0].message
    assert not good_use.problems


def test_kinds_without_parameters_are_described(install):
    install("acme", {"acme_board.py": 'class B:\n    """Ranks."""\n'}, {"boards": {"b": "acme_board:B"}})
    (found,) = describe([lookup("boards", "b")])
    assert (found.problem, found.summary, found.field_names) == (None, "Ranks.", ())


def test_one_session_is_one_process(gossip, monkeypatch):
    started = []
    original = process.subprocess.Popen
    monkeypatch.setattr(process.subprocess, "Popen", lambda *a, **k: started.append(1) or original(*a, **k))
    with session():
        describe([gossip])
        resolve(gossip, {})
        with session():
            resolve(gossip, {"neighbours": 2})
    assert len(started) == 1


def test_a_plugin_that_hangs_is_given_up(install, monkeypatch):
    install("slow", {"slow_p.py": "import time; time.sleep(60)"}, {"aggregators": {"slow": "slow_p:P"}})
    monkeypatch.setattr(process, "ANSWER_SECONDS", 0.5)
    (found,) = describe([lookup("aggregators", "slow")])
    assert found.problem == "no answer within 0.5 s"


def test_public_3_files_of_the_working_folder_reach_no_worker(gossip, tmp_path, monkeypatch):
    """A `queue.py` or `json.py` beside a suite is nobody's plugin."""
    for name in ("queue.py", "json.py", f"{gossip.module}.py"):
        (tmp_path / name).write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert describe([gossip])[0].problem is None


def test_describing_a_plugin_without_torch_does_not_import_it(install):
    source = "import sys\nfrom fcilbench.spec.plugin import Plugin\nclass P(Plugin):\n    @classmethod\n"
    source += "    def facts(cls):\n        return {'light': 'tor' + 'ch' not in sys.modules}\n"
    install("light", {"light_p.py": source}, {"aggregators": {"light": "light_p:P"}})
    assert describe([lookup("aggregators", "light")])[0].facts == {"light": True}


SHELF = """
from fcilbench.data.root import find_data, find_weights
from fcilbench.errors import PrerequisiteError
from fcilbench.spec.params import Params
from fcilbench.spec.plugin import Plugin

class Shelf(Plugin):
    version = "1"

    class Params(Params):
        file: str | None = None
        model: str | None = None

    def files(self):
        if self.params.file:
            return [find_data(self.params.file)]
        try:
            return sorted(find_weights(f"{self.params.model}/config.json").parent.iterdir())
        except PrerequisiteError:
            return []

    def identity(self):
        return {"read": [path.read_text() for path in self.files()]}
"""


@pytest.fixture
def read(install, tmp_path, monkeypatch):
    """Asks within this process what a plugin reads, between an empty working folder and an empty data root."""
    install("shelf", {"shelf_p.py": SHELF}, {"backbones": {"shelf": "shelf_p:Shelf"}})
    monkeypatch.setattr(process.Asker, "ask", lambda _, question: answer(json.loads(json.dumps(question))))
    monkeypatch.setenv("FCILBENCH_DATA", str(tmp_path / "root"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield lambda **options: resolve(lookup("backbones", "shelf"), options).identity["read"]
    sys.modules.pop("shelf_p", None)


def put_text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_file_that_is_put_before_the_one_found_is_another_plugin(read, tmp_path):
    """A cell had the identity of the weights under the data root, and was trained with those of the working folder."""
    put_text(tmp_path / "root" / "t.csv", "far")
    assert read(file="t.csv") == ["far"]
    put_text(tmp_path / "here" / "t.csv", "near")
    assert read(file="t.csv") == ["near"]
    (tmp_path / "here" / "t.csv").unlink()
    assert read(file="t.csv") == ["far"]


def test_a_model_folder_that_appears_or_grows_is_another_plugin(read, tmp_path):
    folder = tmp_path / "root" / "weights" / "acme" / "bert"
    assert read(model="acme/bert") == []
    put_text(folder / "config.json", "{}")
    assert read(model="acme/bert") == ["{}"]
    put_text(folder / "model.bin", "weights")
    assert read(model="acme/bert") == ["{}", "weights"]
