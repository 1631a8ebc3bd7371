import hashlib
import importlib.metadata
import os
import platform
import subprocess

import pytest

from fcilbench.results.provenance import (
    capture,
    digest,
    environment,
    hardware_digest,
    host_digest,
    same_hardware,
    software,
    source_state,
)


def _git(folder, *arguments):
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | identity
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", "package")
    _git(tmp_path, "commit", "-qm", "first")
    return package


@pytest.fixture(autouse=True)
def _fresh():
    source_state.cache_clear()
    yield
    source_state.cache_clear()


@pytest.mark.parametrize(
    ("file", "dirty"), [(None, False), ("package/__init__.py", True), ("package/new.py", True), ("notes.txt", False)]
)
def test_a_checkout_has_its_commit_and_is_dirty_if_the_package_differs(checkout, monkeypatch, tmp_path, file, dirty):
    if file is not None:
        (checkout.parent / file).write_text("x = 1\n")
    commit = _git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))  # the caller's variables do not redirect
    assert source_state(checkout) == (commit, dirty)


def test_without_git_or_inside_a_strange_checkout_there_is_no_commit(checkout, monkeypatch):
    installed = checkout.parent / "venv" / "fcilbench"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert source_state(installed) == (None, None)
    monkeypatch.setenv("PATH", "")
    assert source_state(checkout) == (None, None)


def test_digest_is_sha256_of_sorted_compact_json():
    assert digest({"b": "x", "a": 1}) == "sha256:" + hashlib.sha256(b'{"a":1,"b":"x"}').hexdigest()


def test_the_environment_names_versions_and_no_machine():
    record = environment({"torch": "2.9", "gpu": "H100"})
    assert record["python"] == platform.python_version()
    assert record["packages"]["pydantic"] == importlib.metadata.version("pydantic")
    assert record["worker"] == {"torch": "2.9", "gpu": "H100"}
    assert platform.node() not in {str(value) for value in record.values()}


def test_hardware_digest_sees_hardware_only():
    base = environment({"gpu": "H100", "gpu_memory": 80, "torch": "2.9"})
    assert hardware_digest(base) == hardware_digest({**base, "python": "3.99", "packages": {}})
    assert hardware_digest(base) == hardware_digest(environment({"gpu": "H100", "gpu_memory": 80, "torch": "3.0"}))
    assert hardware_digest(base) != hardware_digest(environment({"gpu": "H200", "gpu_memory": 80}))
    assert hardware_digest(base) != hardware_digest({**base, "cpu": "other"})


def test_how_torch_uses_a_processor_is_part_of_the_hardware():
    """Costs and last bits of one machine differ between torch's code for AVX512 and its default code."""
    fast, slow = (environment({"torch": "2.9", "capability": name}) for name in ("AVX512", "DEFAULT"))
    assert hardware_digest(fast) != hardware_digest(slow)
    once, twice = (environment({"torch": "2.9", "rounding": digits}) for digits in ("0a1b", "2c3d"))
    assert hardware_digest(once) != hardware_digest(twice)  # MKL's code for AMD takes twice the time of that for Intel
    assert same_hardware(fast, slow)  # a plan, which has no torch, cannot tell them apart
    assert not same_hardware(fast, {**slow, "processor": {**slow["processor"], "model": "other"}})
    assert not same_hardware(None, fast)


def test_a_record_without_a_processor_keeps_its_digest():
    """The digest of rows that were published before the processor was recorded, worked out by hand."""
    old = {"machine": "x86_64", "cpu": "AMD EPYC", "cpu_count": 2, "memory_gib": 24, "worker": {"gpu": None}}
    text = '{"cpu":"AMD EPYC","cpu_count":2,"gpu":null,"gpu_memory":null,"machine":"x86_64","memory_gib":24}'
    assert hardware_digest(old) == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def test_the_machine_of_the_worker_counts_and_not_that_of_the_supervisor():
    node = {"cpu": "Node", "processor": {"vendor": "GenuineIntel"}, "cpu_count": 64}
    record = environment({"torch": "2.9", "machine": node})
    assert (record["cpu"], record["processor"], record["cpu_count"]) == ("Node", {"vendor": "GenuineIntel"}, 64)
    assert record["worker"] == {"torch": "2.9"}


def test_capture_fits_together():
    found = capture({"gpu": "H100"})
    assert found.env == digest(found.environment)
    assert found.hardware_digest == hardware_digest(found.environment)
    assert found.host_digest == host_digest()


def test_software_that_matters_is_what_fcilbench_and_the_plugins_require():
    """pytest is required by an extra only, and another plugin's distribution by nothing."""
    packages = {"acme": "1", "other": "3", "pytest": "9", "ruamel-yaml": "0.18", "torch": "2.9"}
    record = {"python": "3.12", "cpu": "fast", "packages": packages}
    own = {"ruamel-yaml": "0.18", "torch": "2.9"}
    assert software(record, ["fcilbench"]) == {"python": "3.12", "packages": own}
    assert software(record, ["fcilbench", "acme"])["packages"] == {"acme": "1", **own}
