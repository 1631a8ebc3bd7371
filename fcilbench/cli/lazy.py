"""A group of commands that imports a command when it is called: `--help` needs only names and summaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Verb:
    """A command as the list of commands shows it, and where it is.

    Attributes:
        target: `module:function` of a command, or `module:app` of a group.
        summary: First paragraph of its help.
        example: Words after `fcilbench` that call a command; a group's commands have their own.
    """

    target: str
    summary: str
    example: str = ""


class Commands(Mapping[str, Any]):
    """Commands by name, each loaded when it is looked up."""

    def __init__(self, verbs: Mapping[str, Verb], others: Mapping[str, Any]) -> None:
        self._verbs, self._loaded = verbs, dict(others)

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._verbs[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._verbs, **self._loaded})

    def __len__(self) -> int:
        return len({**self._verbs, **self._loaded})

    def listed(self, name: str) -> Any:
        """Returns a command, or what stands for it in lists: its name and its summary."""
        if name in self._verbs and name not in self._loaded:
            return TyperCommand(name, help=self._verbs[name].summary)
        return self.get(name)


class LazyGroup(TyperGroup):
    """A group whose commands are those of `verbs`, beside those that are registered with it."""

    verbs: ClassVar[Mapping[str, Verb]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = Commands(self.verbs, self.commands)
        self._listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of the commands."""
        return [*self.commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command by its name, and what stands for it while commands are only listed."""
        return self.commands.listed(cmd_name) if self._listing else self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help in plain text: importing what draws boxes would take most of the time."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands with their whole summaries, of which the base class shows the first words."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands.listed(name).help) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Returns the names of commands, with their summaries, and of options that complete a word."""
        with self._only_listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _only_listing(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


def _load(name: str, verb: Verb) -> Any:
    """Imports a command or a group."""
    from fcilbench.cli import options

    module, _, attribute = verb.target.partition(":")
    app = getattr(import_module(module), attribute)
    if not isinstance(app, typer.Typer):
        function, app = app, options.group()
        options.command(app, verb.example, name)(function)
    command = typer.main.get_command(app)
    command.name = name
    return command
