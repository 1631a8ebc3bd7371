"""`fcilbench data inspect`: shows what will be read of a data set, and how, before a first suite is run."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fcilbench.cli import console, options
from fcilbench.cli.progress import Display
from fcilbench.tables import counted, text_table
from fcilbench.workflow.survey import Survey, inspect_data

_SHADES = "░▒▓█"
_MOST_CLIENTS, _MOST_CLASSES, _MOST_SHOWN = 40, 60, 5


def inspect(
    what: Annotated[
        Path,
        typer.Argument(help="Suite, folder of images or table of texts.", metavar="SUITE|DIR|FILE", show_default=False),
    ],
    *,
    set_: options.Set = None,
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
) -> None:
    """Read the data of a suite, a folder of images or a table of texts, and show what they are.

    Classes with counts, the layout or form that was found, sizes and modes of images, lengths of texts and what
    backbones cut of them, samples that occur twice, names that look alike, and how tasks and clients share the samples:
    as the suite draws them, else for ten clients with label skew. With a folder or a file, `-s` sets an option of
    `image-folder` or `csv`. Exit codes: 0; 2 if the suite or an option is wrong; 5 if data cannot be read.
    """
    with contextlib.closing(Display("reading", "images")) as display:
        surveys = inspect_data(what, set_ or (), display.show)
    if form is options.Form.TABLE:
        for number, survey in enumerate(surveys):
            console.show([""] if number else [])
            console.show(_lines(survey))
    else:
        rows = [
            (survey.label, class_["name"], class_["train"], class_["test"])
            for survey in surveys
            for class_ in survey.facts.get("classes", ())
        ]
        headers = ("data set", "class", "train", "test")
        records = [survey.record for survey in surveys]
        console.show_list(form, headers, rows, key="datasets", records=records)
    if code := max(survey.exit_code for survey in surveys):
        raise typer.Exit(code)


def _lines(survey: Survey) -> Iterator[str]:
    """Yields what a person wants to see of a data set."""
    facts = survey.facts
    yield f"{survey.label} ({survey.plugin})"
    if "digest" in facts:
        for name, text in _facts(facts):
            yield f"  {name:<12}{text}"
        if survey.given:
            yield f"  {'in a suite':<12}{_entry(survey)}"
    if facts.get("problem"):
        yield f"  {'problem':<12}{facts['problem']}"
    if facts.get("hint"):
        yield f"  {'hint':<12}{facts['hint']}"
    if "digest" in facts:
        yield ""
        yield from _classes(facts)
        for partition in facts["partitions"]:
            yield ""
            yield from _picture(partition)


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if facts["reading"]:
        yield "read as", facts["reading"]
    classes = counted(len(facts["classes"]), "class", "classes")
    yield "samples", f"{facts['train']:,} for training and {facts['test']:,} for tests, of {classes}"
    if "arrays" in facts:
        yield "arrays", f"of shape {facts['arrays']['shape']}, {facts['arrays']['type']}"
    else:
        yield from _image_facts(facts["images"]) if "images" in facts else _text_facts(facts["texts"])
    twice = facts["doubles"]
    again = f"repeated: {twice['train']:,} in training, {twice['test']:,} in tests"
    both = f"; {counted(twice['both'], 'test sample')} also in training (the first: {twice['both_example']})"
    under = f"; {counted(twice['labels'], 'sample')} under more than one label (the first: {twice['labels_example']})"
    yield "doubles", again + both * bool(twice["both"]) + under * bool(twice["labels"])
    for one, other in facts["alike"][:_MOST_SHOWN]:
        yield "alike", f"{one!r} and {other!r} are two classes"
    for remark in facts["remarks"]:
        yield "note", remark
    yield "content", facts["digest"]


def _entry(survey: Survey) -> str:
    """Returns the entry of a suite that reads a folder or a file as it was read here."""
    given = {"use": survey.plugin.rpartition("/")[2], **survey.given}
    plain = re.compile(r"[A-Za-z0-9_./][\w./-]*")
    texts = (
        value if isinstance(value, str) and plain.fullmatch(value) else json.dumps(value) for value in given.values()
    )
    return f"dataset: [{{{', '.join(f'{name}: {text}' for name, text in zip(given, texts, strict=True))}}}]"


def _image_facts(images: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sizes = [f"{size['width']}x{size['height']} ({size['count']:,})" for size in images["sizes"][:_MOST_SHOWN]]
    more = f", {images['different_sizes'] - _MOST_SHOWN} more" if images["different_sizes"] > _MOST_SHOWN else ""
    sides = f"; sides {images['sides']['least']} to {images['sides']['largest']}" if more else ""
    yield "sizes", f"{', '.join(sizes)}{more}{sides}"
    kinds = [f"{name} {count:,}" for key in ("modes", "formats") for name, count in images[key].items()]
    yield "kinds", ", ".join(kinds)
    if images.get("enlarged"):
        what = counted(images["enlarged"], "image")
        size = images["decoded"]
        pixels = size if isinstance(size, int) else f"{size[0]} (height) or {size[1]} (width)"
        yield "enlarged", f"{what} with a side shorter than the {pixels} pixels of `size`"
    if images["turned"]:
        yield "turned", f"{counted(images['turned'], 'image')} by orientation tags"
    if images.get("frames"):
        yield "frames", f"{counted(images['frames'], 'image')} with more than one frame or page: the first is read"
    for image in images["broken"][:_MOST_SHOWN]:
        yield "broken", f"{image['file']}: {image['problem']}"
    if images.get("broken_count", 0) > _MOST_SHOWN:
        yield "broken", f"and {images['broken_count'] - _MOST_SHOWN} more images"


def _text_facts(texts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("characters", "words"):
        yield name, _spread(texts[name])
    if texts["empty"]:
        yield "empty", f"{counted(texts['empty'], 'text')} without a word"
    for tokens in texts["tokens"]:
        if tokens.get("problem"):
            yield "tokens", f"{tokens['backbone']}: {tokens['problem']}"
            continue
        cut = f"; {counted(tokens['full'], 'text')} of {tokens['limit']} or more, cut there" if tokens["full"] else ""
        yield "tokens", f"{_spread(tokens)} for {tokens['backbone']}{cut}"


def _spread(numbers: Mapping[str, int]) -> str:
    return (
        f"{numbers['least']:,} to {numbers['largest']:,}, half of them up to {numbers['median']:,}, "
        f"95% up to {numbers['p95']:,}"
    )


def _classes(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields the table of classes: in the order of arrival if there is a partition, else in the order of labels."""
    tasks: list[Any] = next((partition["tasks"] for partition in facts["partitions"] if partition["tasks"]), [])
    order = [(name, str(number)) for number, task in enumerate(tasks, start=1) for name in task["classes"]]
    order = order or [(class_["name"], "") for class_ in facts["classes"]]
    counts = {class_["name"]: class_ for class_ in facts["classes"]}
    rows = [(name, task, f"{counts[name]['train']:,}", f"{counts[name]['test']:,}") for name, task in order]
    heads = [("class", "task", "train", "test")]
    yield from text_table(heads, rows[:_MOST_CLASSES], width=console.width(), right=(1, 2, 3))
    if len(rows) > _MOST_CLASSES:
        yield f"and {len(rows) - _MOST_CLASSES} more classes: --format json has all"


def _picture(partition: Mapping[str, Any]) -> Iterator[str]:
    """Yields a picture of a partition: a row for each client, a column for each class in the order of the table."""
    clients, label, tasks = partition["clients"], partition["label"], partition["tasks"]
    if partition["problem"] or not tasks:
        yield f"partition {label}: {partition['problem'] or 'no tasks'}"
        return
    largest = max((count for task in tasks for row in task["counts"] for count in row), default=0)
    yield f"partition {label} over {counted(clients, 'client')}: a row for each client, a column for each class"
    shown: list[Any] = []
    room = console.width() - 24
    for task in tasks:
        room -= len(task["classes"]) + 1
        if shown and room < 0:
            break
        shown.append(task)
    totals = [sum(sum(task["counts"][client]) for task in tasks) for client in range(clients)]
    for client in range(min(clients, _MOST_CLIENTS)):
        cells = "│".join(_row(task["counts"][client], largest) for task in shown)
        yield f"{client:>6} │{cells}│ {totals[client]:,}"
    if clients > _MOST_CLIENTS:
        yield f"and {clients - _MOST_CLIENTS} more clients"
    left = f"; {counted(len(tasks) - len(shown), 'more task')}" if len(shown) < len(tasks) else ""
    yield f"       · none, {' '.join(_SHADES)} up to {counted(largest, 'sample')}, │ between tasks{left}"


def _row(counts: Sequence[int], largest: int) -> str:
    steps = len(_SHADES)
    return "".join(_SHADES[-(-count * steps // largest) - 1] if count else "·" for count in counts)
