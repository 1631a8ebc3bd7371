from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fcilbench.tracking.uri import artifact_location, tracking_uri, unreachable, without_password


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.delenv("FCILBENCH_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_option_then_own_variable_then_mlflows_then_sqlite(monkeypatch):
    root = Path("/data/results")
    assert tracking_uri(root) == "sqlite:////data/results/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://m")
    assert tracking_uri(root) == "http://m"
    monkeypatch.setenv("FCILBENCH_TRACKING_URI", "http://f")
    assert tracking_uri(root) == "http://f"
    assert tracking_uri(root, "http://o") == "http://o"


def test_a_server_keeps_files_in_its_own_place():
    assert artifact_location(Path("/data/r"), "https://m:5000") is None
    assert artifact_location(Path("/data/r"), "sqlite:////x.db") == "file:///data/r/mlartifacts"
    assert artifact_location(Path("/data/r"), "postgresql://db/x") == "file:///data/r/mlartifacts"


def test_a_listening_port_is_reachable_and_a_closed_one_is_not():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert unreachable(f"http://127.0.0.1:{port}") is None
    reason = unreachable(f"http://127.0.0.1:{port}")
    assert reason is not None
    assert reason.startswith(f"no answer from http://127.0.0.1:{port}: ")
    assert unreachable("sqlite:///x.db") is None
    assert "no answer" in str(unreachable("http://127.0.0.1:99999"))


def test_passwords_stay_out_of_messages():
    assert without_password("https://ann:p@ss@host:1/x") == "https://host:1/x"
    assert without_password("sqlite:////a/b.db") == "sqlite:////a/b.db"
    assert without_password("mlruns") == "mlruns"
