"""`fcilbench module`: export of a finished cell, and what a file tells."""


def test_export_and_inspect_a_finished_cell(finished):
    cli = finished
    rows = {row["coords"]["aggregator"]: row["cell_id"] for row in cli.json("show")["rows"]}
    done = cli("module", "export", rows["sum"][:8], "-o", "sum.safetensors")
    assert done.returncode == 0, done.stderr
    assert "bytes packed" in done.stdout
    found = cli.json("module", "inspect", "sum.safetensors")
    assert found["cell"] == rows["sum"]
    assert found["tasks"] == [[0, 2], [2, 2]]
    parts = found["parts"]
    size, rest = parts["backbone"], 4 * (parts["head"] + parts["buffers"])
    assert found["dense_bytes"] == 2 * size + 2 * (-(-size // 8) + 4) + rest
    assert found["file_bytes"] - rest < (found["dense_bytes"] - rest) / 4
    text = cli("module", "inspect", "sum.safetensors").stdout
    assert f"{found['file_bytes']:,} bytes packed, {found['dense_bytes']:,} dense" in text
    assert cli("module", "export", rows["fedavg"][:8], "-o", "avg.safetensors").returncode == 0
    assert "the global model" in cli("module", "inspect", "avg.safetensors").stdout


def test_what_cannot_be_exported_or_inspected_says_why(finished):
    cli = finished
    rows = {row["coords"]["aggregator"]: row["cell_id"] for row in cli.json("show")["rows"]}
    final = cli.folder / "results" / "cells" / rows["sum"] / "module.safetensors"
    final.rename(final.with_name("away"))
    kept_none, failed = cli("module", "export", rows["sum"]), cli("module", "export", rows["acme"])
    final.with_name("away").rename(final)
    assert (kept_none.returncode, "runtime.keep_model=true" in kept_none.stderr) == (5, True)
    assert (failed.returncode, "deploys nothing" in failed.stderr) == (2, True)
    other = cli("module", "inspect", "tiny.yaml")
    assert (other.returncode, "cannot be read" in other.stderr) == (2, True)
