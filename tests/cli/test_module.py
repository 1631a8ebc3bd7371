"""`fcilbench module`: export of a finished cell, and what a file tells."""

RUN = ("run", "kept.yaml", "--tracking", "none", "--out", "kept")


def test_export_and_inspect_a_finished_cell(cli) -> None:
    cli.suite(
        "kept.yaml",
        ("aggregator: [fedavg, acme]", "aggregator: [fedavg, sum]"),
        ("seeds: 1", "seeds: 1\nruntime: {keep_model: true}"),
    )
    assert cli(*RUN).returncode == 0
    rows = {row["coords"]["aggregator"]: row["cell_id"] for row in cli.json("show", "--out", "kept")["rows"]}
    done = cli("module", "export", rows["sum"][:8], "--out", "kept", "-o", "sum.safetensors")
    assert done.returncode == 0, done.stderr
    assert "bytes packed" in done.stdout
    found = cli.json("module", "inspect", "sum.safetensors")
    assert found["cell"] == rows["sum"]
    assert found["tasks"] == [[0, 5], [5, 5]]
    size = found["parts"]["backbone"]
    parts = found["parts"]
    rest = 4 * (parts["head"] + parts["buffers"])
    assert found["dense_bytes"] == 2 * size + 2 * (-(-size // 8) + 4) + rest
    assert found["file_bytes"] - rest < (found["dense_bytes"] - rest) / 4
    text = cli("module", "inspect", "sum.safetensors").stdout
    assert f"{found['file_bytes']:,} bytes packed, {found['dense_bytes']:,} dense" in text
    assert cli("module", "export", rows["fedavg"][:8], "--out", "kept", "-o", "avg.safetensors").returncode == 0
    assert "the global model" in cli("module", "inspect", "avg.safetensors").stdout


def test_a_cell_that_kept_no_model_says_how_to_keep_it(finished) -> None:
    cli = finished()
    rows = {row["status"]: row["cell_id"] for row in cli.json("show")["rows"]}
    done = cli("module", "export", rows["ok"])
    assert done.returncode == 5
    assert "runtime.keep_model=true" in done.stderr
    failed = cli("module", "export", rows["failed"])
    assert failed.returncode == 2
    assert "deploys nothing" in failed.stderr


def test_inspect_refuses_other_files(cli) -> None:
    done = cli("module", "inspect", "tiny.yaml")
    assert done.returncode == 2
    assert "cannot be read" in done.stderr
