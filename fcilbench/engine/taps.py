"""Hooks that listen to a network's layers inside a `with` block and are gone after it, whatever happens."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from torch.utils.hooks import RemovableHandle


class Taps:
    """Base of those who listen: `listen` registers the hooks, the end of the block removes them."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def listen(self) -> list[RemovableHandle]:
        """Registers the hooks and returns their handles."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._handles = self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
