"""Damaged suites and stores, made with a fixed seed: a short message and a documented exit code, whatever they hold."""

import random
import re
import shutil
import sys

import pytest

from fcilbench.cli.main import main
from fcilbench.errors import CELLS_FAILED, NOTHING_SELECTED, OK, PREREQUISITE, USAGE
from fcilbench.registry import catalog
from fcilbench.results.store import Store

pytestmark = pytest.mark.slow
CASES = 100
LONGEST_LINE = 900
SUITE = """\
fcilbench: 1
name: fuzz
description: &text "what it is"
protocol: {clients: 2, rounds: 1, local_epochs: 1, augment: false, lr: 1e-3}
grid:
  dataset: [{use: digits, tasks: 2, train_per_class: 4}, {use: digits, label: few, tasks: [4, 6]}]
  backbone: [{use: timm, model: vit_tiny_patch16_224, weights: none, args: {img_size: 16, depth: 1}}]
  partition: [iid, {dirichlet: 0.5}]
  aggregator: [fedavg, {use: sum, lambda_s: 0.2}]
  stress: [none]
seeds: {count: 2, vary: [train]}
tuned: [{where: {aggregator: sum}, set: {protocol.lr: 1e-4}}]
exclude: [{aggregator: sum, partition: iid, because: *text}]
evaluate: {task_identity: [none, oracle]}
limits: {wall: 10m, retries: 1}
boards: [accuracy]
"""
NASTY = [
    *"{}[]:,&*!|>'\"%@`#-?~\t\n\0\x1b\x85\u2028\u202e\ufeff\ud800",
    *("null", "yes", "-1", "0", "1e999", ".nan", "-.inf", "0x" + "f" * 999, "9" * 99, "99999999999", "2024-01-01"),
    *("''", "[]", "{}", "[[]]", "*text", "<<: {}", "extends: s.yaml\n", "extends: /dev/zero\n", "extends: .\n"),
    *("!!python/object/apply:os.system [touch pwned]", "!!binary AAAA", "? [a]\n: b\n", "---\n", "...\n", "x" * 9999),
    *("[" * 99, '"\\ud800"', '"\\e]0;x\\a"', "../../x", "/etc/passwd", "$(touch pwned)"),
    *("a" * 300 + ": 1\n", "\n  " * 50 + "a: "),
]


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """Runs a command of the command line in this process, with one process for all questions about plugins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FCILBENCH_CACHE", str(tmp_path.parent / "cache"))
    monkeypatch.setenv("FCILBENCH_DATA", str(tmp_path.parent / "data"))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fcilbench", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        text = "".join(capfd.readouterr())
        code = end.value.code or OK
        assert isinstance(code, int)
        assert "internal error" not in text, text
        assert "Traceback" not in text, text
        assert max(map(len, text.splitlines()), default=0) < LONGEST_LINE, text
        assert not [each for each in text if not each.isprintable() and each != "\n"], text
        return code, text

    (tmp_path / "s.yaml").write_text(SUITE)
    with catalog.session():
        yield run


def damaged(text, random_):
    """Returns a text with one to four random changes, each of a character, a value, a line or a byte."""
    for _ in range(random_.randint(1, 4)):
        at, lines = random_.randrange(len(text) + 1), text.splitlines(keepends=True)
        values = list(re.finditer(r"[\w.\"]+", text))
        match random_.randrange(6):
            case 0:
                text = text[:at] + random_.choice(NASTY) + text[at:]
            case 1 if values:
                value = random_.choice(values)
                text = text[: value.start()] + random_.choice(NASTY) + text[value.end() :]
            case 2:
                text = text[:at] + text[at + random_.randint(1, 30) :]
            case 3:
                random_.shuffle(lines)
                text = "".join(lines)
            case 4:
                text += random_.choice(lines or [""])
            case 5 if values:
                one, other = random_.choice(values), random_.choice(values)
                text = text[: one.start()] + other[0] + text[one.end() :]
    data = bytearray(text.encode(errors="surrogatepass"))
    if data and random_.random() < 0.1:
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
    return bytes(data)


def test_a_damaged_suite_is_told_at_its_place_and_nothing_is_written(command, tmp_path):
    """Repeats 2,500 suites of which some hung, some ended in a traceback, and 419 were told without a place."""
    random_, codes = random.Random(20261128), []
    for number in range(CASES):
        data = damaged(SUITE, random_) if number else SUITE.encode()
        (tmp_path / "s.yaml").write_bytes(data)
        code, text = command(random_.choice(["check", "plan"]), "s.yaml")
        assert code in (OK, USAGE, PREREQUISITE), text
        assert code != USAGE or re.search(r"s\.yaml:\d+:\d+: ", text), (text, data)
        assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]
        codes.append(code)
    assert {OK, USAGE} <= set(codes)


def test_a_damaged_store_breaks_no_command(command, tmp_path, make_cell, make_row):
    """Repeats a line of nested lists that ended every command, and a store.json that was read after the training."""
    store = Store(tmp_path / "whole")
    store.extend([make_row(make_cell("sum", seed), {"faa/none": 0.5}) for seed in range(3)])
    env = {"python": "3.12", "worker": {}}
    for folder in ("a", "b"):
        shutil.copytree(store.root, tmp_path / folder)
        Store(tmp_path / folder).save_environment(env)
        Store(tmp_path / folder).save_suite({"name": "x"})
    files = [path for path in (tmp_path / "a").rglob("*") if path.is_file()]
    whole = {path: path.read_text() for path in files}
    random_ = random.Random(20261128)
    verbs = [("show", "--out", "a"), ("board", "accuracy", "--out", "a"), ("plan", "s.yaml", "--out", "a")]
    verbs += [
        ("results", "merge", "a", "--out", "m"),
        ("results", "merge", "b", "--out", "a"),
        ("show", "x", "--out", "a"),
    ]
    for _ in range(CASES):
        for path, text in whole.items():
            path.write_bytes(damaged(text, random_) if random_.random() < 0.5 else text.encode())
        if random_.random() < 0.2:
            with (tmp_path / "a" / "rows.jsonl").open("a") as file:
                file.write(random_.choice(["[" * 100_000, "\0" * 5000, "null", '{"schema": 0}', "\r"]) + "\n")
        code, text = command(*random_.choice(verbs))
        assert code in (OK, USAGE, CELLS_FAILED, NOTHING_SELECTED, PREREQUISITE), text
    (tmp_path / "file").touch()
    (tmp_path / "odd" / "rows.jsonl").mkdir(parents=True)
    told = {"file": (USAGE, "error: --out file is a file"), "odd": (USAGE, "error: odd/rows.jsonl is a folder")}
    for folder, (wanted, message) in told.items():  # B7: were internal errors
        for verb in (*verbs[:3], ("run", "s.yaml", "--out", "a")):
            code, text = command(*verb[:-1], folder)
            assert (code, message in text) == (wanted, True), text
