"""The options of the command line, each declared once, so that a flag means the same everywhere."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from fcilbench.cli import complete, console
from fcilbench.data.root import use_data_root
from fcilbench.errors import UsageError
from fcilbench.shipped import located

Verb = TypeVar("Verb", bound=Callable[..., None])


class Form(enum.StrEnum):
    """The forms in which results are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    MD = "md"
    CSV = "csv"
    TEX = "tex"
    HTML = "html"


def group(help_: str | None = None, cls: type[TyperGroup] | None = None) -> typer.Typer:
    """Returns an app for the commands of a group."""
    return typer.Typer(help=help_, cls=cls, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


def command(app: typer.Typer, example: str, name: str | None = None) -> Callable[[Verb], Verb]:
    """Makes a function a command of an app: with an example in its help, and with `-q` and `-v`, which all have."""

    def add(function: Verb) -> Verb:
        def run(*, quiet: bool, verbose: bool, **values: Any) -> None:
            console.state.quiet, console.state.verbose = quiet, verbose
            console.log_to_stderr()
            function(**values)

        own, kind = inspect.signature(function, eval_str=True), inspect.Parameter.KEYWORD_ONLY
        common = {"quiet": Quiet, "verbose": Verbose}
        added = (inspect.Parameter(key, kind, default=False, annotation=each) for key, each in common.items())
        vars(run)["__signature__"] = own.replace(parameters=[*own.parameters.values(), *added])
        run.__doc__ = function.__doc__
        app.command(name or function.__name__, epilog=f"Example: [bold]fcilbench {example}[/bold]")(run)
        return function

    return add


def _folder(param: typer.CallbackParam, value: Path) -> Path:
    """Returns a results folder, which may not exist yet."""
    if value.is_file():
        raise UsageError(f"{param.opts[0]} {value} is a file", hint="name a folder")
    return value


def _published(param: typer.CallbackParam, value: Path) -> Path:
    """Returns a folder of rows, which may be a leaderboard that comes with the package."""
    return located(_folder(param, value), "leaderboards")


def _plural(value: str | None) -> str | None:
    """Returns the kind of a plugin in the plural, as entry points have it."""
    return value and value.removesuffix("s") + "s"


def _executor(ctx: typer.Context, value: str) -> str:
    """Returns `--executor`, whose options are checked before anything else is done."""
    if not ctx.resilient_parsing:  # a shell that completes a word needs no executor
        from fcilbench.execution.base import executor_class

        executor_class(value)
    return value


SuiteFile = Annotated[
    Path,
    typer.Argument(help="Suite file (YAML).", metavar="SUITE", show_default=False, autocompletion=complete.suites),
]
CellId = Annotated[
    str,
    typer.Argument(
        help="First digits of a cell's id.", metavar="CELL", show_default=False, autocompletion=complete.cells
    ),
]
MaybeSuite = Annotated[
    Path | None,
    typer.Argument(
        help="Suite file: will it run here?",
        metavar="[SUITE]",
        show_default=False,
        autocompletion=complete.suites,
    ),
]
_OF_SUITE = "Show the cells of this suite, also the missing ones."
OfSuite = Annotated[Path | None, typer.Option("--suite", help=_OF_SUITE, autocompletion=complete.suites)]
PluginName = Annotated[str, typer.Argument(help="Short name or dist/name.", autocompletion=complete.plugins)]
_SET = "Set a value of the suite, e.g. protocol.rounds=2; without a suite, an option of what is named, e.g. size=32."
Set = Annotated[list[str] | None, typer.Option("-s", "--set", metavar="PATH=VALUE", help=_SET)]
_ONLY = "Select cells, e.g. aggregator:s*,status:failed or shard:2/5. All terms must hold; a second --only adds cells."
Only = Annotated[list[str] | None, typer.Option("--only", metavar="EXPR", help=_ONLY)]
RESULTS = Path("results")
"""The results folder if `--out` is not given."""
Out = Annotated[Path, typer.Option("--out", metavar="DIR", callback=_folder, help="Results folder.")]
_RERUN = (
    "Which finished cells run again: stale (code or a default changed), failed, all, or never; commas join them. New "
    "and interrupted cells always run; cells that were killed or lacked data or a package do too, except with never."
)
Rerun = Annotated[
    str, typer.Option("--rerun", metavar="stale|failed|never|all", help=_RERUN, autocompletion=complete.policies)
]
Gpus = Annotated[str, typer.Option("--gpus", metavar="auto|0,1|none", help="GPUs to use; none is the CPU.")]
_EXECUTOR = "What runs the cells: local, ray or slurm, e.g. slurm,partition=gpu,minutes=240 (docs/scaling.md)."
Executor = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="NAME[,OPTION=VALUE...]",
        callback=_executor,
        help=_EXECUTOR,
        autocompletion=complete.executors,
    ),
]
_JOBS = "Cells at a time on each device; default: 1 on a GPU, 1 for each core."
Jobs = Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help=_JOBS)]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Start nothing more after the first cell that fails.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for cells that another run works on.")]
_DATA = "Data root; default: FCILBENCH_DATA of the environment, else the user cache."
Data = Annotated[Path | None, typer.Option("--data", metavar="ROOT", callback=use_data_root, help=_DATA)]
_TRACKING = (
    "Tracker and the URI that it writes to; default: mlflow with FCILBENCH_TRACKING_URI or MLFLOW_TRACKING_URI of the "
    "environment, else mlflow.db in the results folder. A URI alone means mlflow."
)
Tracking = Annotated[str | None, typer.Option("--tracking", metavar="NAME[=URI]|none", help=_TRACKING)]
_PARAMS = "Lock file of `fcilbench tune` with values for the cells."
Params = Annotated[Path | None, typer.Option("--params", metavar="LOCK", help=_PARAMS)]
_STORAGE = "Database of the studies, e.g. postgresql+psycopg://user@host/db; default: a file beside the trials."
Storage = Annotated[str | None, typer.Option("--storage", metavar="URL", help=_STORAGE)]
_PLOTS = "Also draw the best score against rounds, and the score against each hyperparameter, as PNG into this folder."
Plots = Annotated[Path | None, typer.Option("--plots", metavar="DIR", help=_PLOTS)]
Offline = Annotated[bool, typer.Option("--offline", help="Refuse the network.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before a run of more than 10 hours.")]
_FORMAT = "Form of the results on standard output; tex and html: boards only, jsonl: lists only."
Format = Annotated[Form, typer.Option("--format", help=_FORMAT)]
_OUTPUT = (
    "Write to this file; the ending sets the form of a board (.txt, .md, .csv, .json, .tex, .html) or of a figure "
    "(.svg, .pdf, .png); a module is safetensors."
)
OutputFile = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help=_OUTPUT)]
_IDENTITY = "What methods are told of a sample's task."
Identity = Annotated[str, typer.Option("--identity", metavar="none|inferred[:SELECTOR]|oracle", help=_IDENTITY)]
_OF = (
    "Which of several things a figure shows: a metric (forest, bytes), diagnostics joined by commas, a stressor "
    "(severity), a hyperparameter (sweep)."
)
Of = Annotated[str, typer.Option("--of", metavar="NAME", help=_OF, show_default=False)]
_REFERENCE = "Show published figures and the differences from them, e.g. leaderboards/paper."
Reference = Annotated[Path | None, typer.Option("--reference", metavar="DIR", help=_REFERENCE)]
_PARTITION = "html: read the data sets, too, and draw how clients share them."
Partition = Annotated[bool, typer.Option("--partition", help=_PARTITION)]
Deep = Annotated[bool, typer.Option("--deep", help="Also run one tiny round of each combination of plugins.")]
ShowConfig = Annotated[bool, typer.Option("--show-config", help="Print every value of the suite with its origin.")]
From = Annotated[
    Path,
    typer.Option(
        "--from",
        metavar="DIR",
        callback=_published,
        help="Folder of the row, e.g. leaderboards/NAME.",
        autocompletion=complete.leaderboards,
    ),
]
_KIND = "Kind of plugin: aggregator, backbone, dataset, stressor, selector, executor, board or tracker."
Kind = Annotated[str | None, typer.Option("--kind", callback=_plural, help=_KIND, autocompletion=complete.kinds)]
_TOLERANCE = "Largest difference that counts as equal, e.g. faa/*=1e-6 or accuracy/*=0.01."
Tolerance = Annotated[
    list[str] | None,
    typer.Option("--tolerance", metavar="METRIC=VALUE", help=_TOLERANCE, autocompletion=complete.tolerances),
]
_WATCH = "Show it anew until nothing runs any more."
Watch = Annotated[bool, typer.Option("--watch", help=_WATCH)]
Sample = Annotated[int, typer.Option("--sample", metavar="N", min=0, help="Number of cells to train again.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the sample.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Errors and results only.", show_default=False)]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="More detail; tracebacks.", show_default=False)]
