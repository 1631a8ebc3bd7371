"""Plugin packages that tests install for real: a module and a `*.dist-info` folder on the search path."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

Install = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FCILBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FCILBENCH_PLUGINS", raising=False)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Returns `install(dist, files, entry_points, version)`, which puts a distribution on the search path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(
        dist: str, files: Mapping[str, str], entry_points: Mapping[str, Mapping[str, str]], version: str = "1.0"
    ) -> Path:
        return put(site, dist, files, entry_points, version)

    yield make
    importlib.invalidate_caches()


def put(
    site: Path,
    dist: str,
    files: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
    version: str = "1.0",
) -> Path:
    """Writes a distribution as an installer would: its modules and a `*.dist-info` folder."""
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
    lines = []
    for kind, points in entry_points.items():
        lines += [f"[fcilbench.{kind}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    importlib.invalidate_caches()
    return site
