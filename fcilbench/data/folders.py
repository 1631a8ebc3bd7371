"""Finds out how a folder of images is laid out, and lists its images: nothing that looks like data is lost in silence.

The usual layouts are `train/<class>/*` with `test/` or `val/`, class folders alone, either of them in a folder of its
own, images in folders below their class folder, and Tiny ImageNet's list of validation images.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fcilbench.api.dataset import Samples
from fcilbench.data.alike import class_name, look, sense, unseen_pairs
from fcilbench.data.images import SUFFIXES, ImageFiles, Size, visible
from fcilbench.errors import DataError
from fcilbench.tables import counted

_WORDS = {"train": ("train", "training"), "test": ("test", "testing"), "val": ("val", "valid", "validation", "dev")}
_ANNOTATIONS = "val_annotations.txt"
_DEEPEST = 8
"""Folders below each other in which images and layouts are looked for."""


@dataclass(frozen=True)
class Layout:
    """Which folders of a data set of images are read, and how.

    Attributes:
        train: Its class folders hold the training images, or all images if there is no test set.
        test: Its class folders hold the test images; `None` if a share of each class is the test set.
        labels: File with the class of each test image below `test`, if that has no class folders.
        says: The layout as words, with paths below the folder that was given.
        remarks: What a user should know of what is not read.
    """

    train: Path
    test: Path | None
    labels: Path | None = None
    says: str = ""
    remarks: tuple[str, ...] = ()


@dataclass
class Listing:
    """The images of class folders.

    Attributes:
        names: Class names, in order.
        files: Images, in the order of classes and paths; `labels` are their classes.
        deeper: Classes some of whose images lie in several folders below the class folder, or in one and beside it.
        nested: Number of classes some of whose images lie in folders below the class folder.
        passed: Number of files that are no images, by suffix.
        hidden: Number of images of each folder that is no class since its name begins with a dot.
    """

    names: tuple[str, ...]
    files: list[Path] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    deeper: dict[str, list[str]] = field(default_factory=dict)
    nested: int = 0
    passed: Counter[str] = field(default_factory=Counter)
    hidden: Counter[str] = field(default_factory=Counter)

    def samples(self, size: Size, margin: float) -> Samples:
        """Returns the images as files of the user's own."""
        return Samples(ImageFiles(self.files, size, margin, own=True), np.array(self.labels, dtype=np.int64))


def find_images(folder: Path, train: str, test: str, share: float | None) -> Layout:
    """Finds the layout of a folder of images.

    Args:
        folder: What the user named.
        train: Name of the folder of training images; `train` stands for its usual spellings.
        test: The same for test images.
        share: Whether, and how much, of one set of class folders becomes the test set; `None`: as the folders are.

    Raises:
        DataError: If it has no class folders, or is not what `share` says.
    """
    if folder.is_file():
        raise DataError(f"{folder} is a file", hint="name the folder; for texts in a table `use: csv`")
    if (train, test) != ("train", "test") and share is None:
        return Layout(folder / train, folder / test, says=f"{train}/<class>/* and {test}/<class>/*")
    root = folder
    for _ in range(_DEEPEST):  # an archive often unpacks into a folder of its own
        splits, within = _splits(root, train, test), _folders(root)
        if splits or len(within) != 1 or _has_images(root) or not _folders(root / within[0]):
            break
        root /= within[0]
    below = "" if root == folder else f"{root.relative_to(folder)}/"
    if not splits:
        return Layout(root, None, says=f"{below}<class>/*", remarks=_beside(root, set(_folders(root))))
    return _split_layout(root, splits, share, below)


def _split_layout(root: Path, splits: dict[str, str], share: float | None, below: str) -> Layout:
    """Returns the layout of a folder that has folders for its splits; `test` goes before `val`, if it has classes."""
    if "train" not in splits:
        shown = " and ".join(f"{name}/" for name in splits.values())
        raise DataError(f"{root} has {shown} but no train/", hint="name the folder of the training images: train: NAME")
    train, names = root / splits["train"], set(_folders(root / splits["train"]))
    choices = [split for split in ("test", "val") if split in splits]
    if share is not None:
        if choices:
            raise DataError(
                f"{root} has {splits['train']}/ and {splits[choices[0]]}/, so test_share has nothing to split",
                hint="leave test_share out; or name with path the one folder that is to be split",
            )
        remarks = _beside(root, {splits["train"]})
        return Layout(train, None, says=f"{below}{splits['train']}/<class>/*", remarks=remarks)
    for split in choices:
        test, labels = root / splits[split], root / splits[split] / _ANNOTATIONS
        listed = labels.is_file() and not names & set(_folders(test))
        if listed or names & set(_folders(test)) or split == choices[-1]:
            how = f"{splits[split]}/ by {_ANNOTATIONS}" if listed else f"{splits[split]}/<class>/*"
            says = f"{below}{splits['train']}/<class>/* and {below}{how}"
            chosen = (f"{splits[split]}/ is the test set",) if split == "val" else ()
            remarks = (*chosen, *_beside(root, {splits["train"], splits[split]}))
            return Layout(train, test, labels if listed else None, says, remarks)
    remarks = _beside(root, {splits["train"]})
    return Layout(train, None, says=f"{below}{splits['train']}/<class>/*", remarks=remarks)


def _beside(root: Path, read: set[str]) -> tuple[str, ...]:
    """Returns a remark on the folders and images beside those that are read."""
    left = []
    for entry in sorted(visible(root), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name not in read:
            left.append(f"{entry.name}/ ({counted(_images_below(Path(entry.path)), 'image')})")
    loose = sum(Path(entry.name).suffix.lower() in SUFFIXES for entry in visible(root) if not entry.is_dir())
    left += [f"{counted(loose, 'image')} beside the folders"] if loose else []
    return (f"not read: {', '.join(left[:5])}{', ...' if len(left) > 5 else ''}",) if left else ()


def _splits(root: Path, train: str, test: str) -> dict[str, str]:
    """Returns the names of the folders for `train`, `test` and `val` that are there; those of classes are none."""
    own = {split: (name,) for split, name in (("train", train), ("test", test)) if split != name}
    names = {name.lower(): name for name in _folders(root)} | {name: name for name in _folders(root)}
    splits = {}
    for split, spellings in {**_WORDS, **own}.items():
        there = [names[spelling] for spelling in spellings if spelling in names]
        if there and not _has_images(root / there[0]) and _folders(root / there[0]):
            splits[split] = there[0]
    return splits


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in visible(folder) if entry.is_dir())


def _has_images(folder: Path) -> bool:
    return any(Path(entry.name).suffix.lower() in SUFFIXES for entry in visible(folder) if not entry.is_dir())


def list_classes(folder: Path) -> Listing:
    """Lists the images of class folders, and of the folders below them.

    Raises:
        DataError: If there are no class folders, one has no image, or the names of two look the same.
    """
    listing = Listing(tuple(_folders(folder)))
    if not listing.names:
        why = "has images but no class folders" if _has_images(folder) else "has no class folders"
        raise DataError(f"{folder} {why}", hint="put the images of each class into a folder with the name of the class")
    for name in listing.names:
        class_name(name)
    for one, other in unseen_pairs(listing.names):
        hint = "rename one of them, or put the images of both into one folder"
        raise DataError(f"{folder}: the names of class folders {one!a} and {other!a} look the same", hint=hint)
    for label, name in enumerate(listing.names):
        _list_class(folder / name, label, listing)
    listing.hidden += _hidden(folder)
    return listing


def _hidden(folder: Path) -> Counter[str]:
    """Returns the number of images below each hidden folder; one that cannot be read is passed over."""
    found = Counter[str]()
    for entry in folder.glob(".*"):
        with suppress(DataError, OSError):
            if entry.is_dir():
                found[entry.name] = _images_below(entry)
    return +found


def _images_below(folder: Path) -> int:
    return sum(path.suffix.lower() in SUFFIXES for path, _ in _walk(folder))


def _list_class(folder: Path, label: int, listing: Listing) -> None:
    images, others = [], Counter[str]()
    for path, parts in _walk(folder):
        if path.suffix.lower() in SUFFIXES:
            images.append((path, parts))
        else:
            others[path.suffix.lower() or path.name] += 1
    if not images:
        shown = f"; it has {_suffixes(others)}" if others else ""
        hint = f"images end in {', '.join(sorted(SUFFIXES))}; remove a folder that is no class"
        raise DataError(f"class folder {folder} has no image{shown}", hint=hint)
    listing.files += sorted(path for path, _ in images)
    listing.labels += [label] * len(images)
    listing.passed += others
    below = {parts[0] if parts else "" for _, parts in images}
    listing.nested += below != {""}
    if len(below) > 1:
        listing.deeper[folder.name] = sorted(below - {""})


def _walk(folder: Path, parts: tuple[str, ...] = ()) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yields every file below a folder with the folders between them."""
    if len(parts) > _DEEPEST:
        raise DataError(f"{folder} is nested deeper than {_DEEPEST} folders", hint="a link may lead back to itself")
    for entry in sorted(visible(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(folder / entry.name, (*parts, entry.name))
        else:
            yield folder / entry.name, parts


def listing_remarks(listings: Sequence[Listing]) -> Iterator[str]:
    """Yields lines about images in folders below their class folder, hidden folders, and files that are no images."""
    deeper = {name: below for listing in listings for name, below in listing.deeper.items()}
    if deeper:
        shown = ", ".join(f"{name!r} has {'/, '.join(below[:3])}/" for name, below in list(deeper.items())[:3])
        more = ", ..." if len(deeper) > 3 else ""
        yield f"images in folders below their class folder are read as of that class: {shown}{more}"
    if hidden := sum((listing.hidden for listing in listings), Counter[str]()):
        shown = ", ".join(f"{name}/ ({counted(count, 'image')})" for name, count in sorted(hidden.items())[:5])
        yield f"not read, since a name that begins with a dot is hidden: {shown}{', ...' if len(hidden) > 5 else ''}"
    passed = sum((listing.passed for listing in listings), Counter[str]())
    if passed:
        yield f"passed over in class folders, since they are no images: {_suffixes(passed)}"


def _suffixes(passed: Counter[str]) -> str:
    shown = ", ".join(f"{count} {suffix}" for suffix, count in passed.most_common(4))
    return f"{shown}, ..." if len(passed) > 4 else shown


def compare_classes(train: Listing, test: Listing, layout: Layout) -> None:
    """Compares the class folders of training and test images.

    Raises:
        DataError: If one stands in one part only.
    """
    odd = {"train": sorted(set(train.names) - set(test.names)), "test": sorted(set(test.names) - set(train.names))}
    for key in (look, sense):
        for one in odd["train"]:
            twin = next((name for name in odd["test"] if key(name) == key(one)), None)
            if twin is not None:
                what = f"class folders {layout.train / one} and {layout.test}/{twin} differ in how they are written"
                raise DataError(f"{what}: {one!a} and {twin!a}", hint="give both the same name")
    if names := odd["train"]:
        more = f" (nor have {len(names) - 1} more classes)" if len(names) > 1 else ""
        hint = "add test images of each class, or leave the class out; test_share splits a folder without test images"
        raise DataError(f"class {names[0]!r} has no test images: no folder {layout.test}/{names[0]}{more}", hint=hint)
    if names := odd["test"]:
        more = f" (nor have {len(names) - 1} more classes)" if len(names) > 1 else ""
        what = f"class {names[0]!r} has no training images: no folder {layout.train}/{names[0]}{more}"
        raise DataError(what, hint="add training images of the class, or remove its test images")


def list_annotated(labels: Path, folder: Path, names: Sequence[str]) -> Listing:
    """Lists the test images of Tiny ImageNet, whose classes stand in a table of file name, class and box.

    Raises:
        DataError: If the table cannot be read, or names a class or a file that is not there.
    """
    number = {name: label for label, name in enumerate(names)}
    files = {path.name: path for path, _ in _walk(folder) if path.suffix.lower() in SUFFIXES}
    pairs = []
    for count, line in enumerate(labels.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        words = re.split(r"\t| {2,}", line.strip())
        if len(words) < 2 or words[0] not in files or words[1] not in number:
            what = "no image of this name" if words[0] not in files else "no class of this name"
            raise DataError(f"{labels}:{count}: {what} for {line.strip()[:60]!r}")
        pairs.append((number[words[1]], files[words[0]]))
    if absent := sorted(set(number.values()) - {label for label, _ in pairs}):
        raise DataError(f"{labels} has no image of class {names[absent[0]]!r}")
    if len(pairs) != len(files):
        raise DataError(f"{labels} lists {len(pairs)} images, but {folder} has {len(files)}")
    pairs.sort()
    return Listing(tuple(names), [path for _, path in pairs], [label for label, _ in pairs], passed=Counter())
