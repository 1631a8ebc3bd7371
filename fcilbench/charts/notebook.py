"""A results folder for notebooks: its tables, and its charts as Altair objects that need no network."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from fcilbench.charts.choose import Chosen, Spread, figure
from fcilbench.charts.draw import drawn, svg
from fcilbench.charts.theme import LIGHT
from fcilbench.results.chosen import select_rows
from fcilbench.results.frames import Frames
from fcilbench.results.frames import load as load_frames
from fcilbench.results.store import Store

if TYPE_CHECKING:
    import altair as alt


class How(TypedDict, total=False):
    """What the methods of `Plots` take by name.

    Attributes:
        identity: What methods are told of a sample's task: `none`, `inferred`, `inferred:SELECTOR` or `oracle`.
        of: Which of several: a metric (`forest`, `bytes`), a diagnostic, a stressor (`severity`), a hyperparameter
            (`sweep`); without, the usual one or the only one.
        title: Title of the chart; without, the usual one.
        width: Width in pixels.
    """

    identity: str
    of: str
    title: str
    width: int


class Plots:
    """The charts of a results folder, each as `fcilbench figure` draws it, in the width of a page.

    A chart is an Altair chart: it can be changed, saved (`chart.save("forest.html", inline=True)`) and shown. A
    notebook shows it as a picture, which needs no network; `altair.renderers.enable(...)` chooses another way.

    All have the same arguments, see `How`; `only` selects rows, as `--only` does, e.g. `dataset:cifar100`. All raise
    `fcilbench.errors.UsageError` if the rows have more than a chart can show, and
    `fcilbench.errors.NothingSelectedError` if they have nothing of it.
    """

    def __init__(self, folder: Path, spread: Spread | None = None) -> None:
        self._folder, self._spread = folder, spread

    def forest(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns the scores of methods with intervals and seeds, best first."""
        return self._draw("forest", only, **how)

    def bytes(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns the score of methods against the bytes of a run."""
        return self._draw("bytes", only, **how)

    def curves(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns the mean accuracy on the tasks seen, after each task."""
        return self._draw("curves", only, **how)

    def matrix(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns the accuracy of one method on each task after each task."""
        return self._draw("matrix", only, **how)

    def forgetting(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns what one method lost on each task after each later one."""
        return self._draw("forgetting", only, **how)

    def loss(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns the training loss after each round."""
        return self._draw("loss", only, **how)

    def diagnostics(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns what methods log over the rounds; `of` names what, joined by commas."""
        return self._draw("diagnostics", only, **how)

    def severity(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns the accuracy by the severity of a stressor."""
        return self._draw("severity", only, **how)

    def sweep(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns the score against a hyperparameter that is the only difference between methods."""
        return self._draw("sweep", only, **how)

    def budget(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns the scores of the tuning studies that travelled with the rows, against their rounds."""
        return self._draw("budget", only, **how)

    def critical_difference(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns mean ranks over scenarios or seeds, with Nemenyi's test."""
        return self._draw("critical-difference", only, **how)

    def partition(self, only: str = "", **how: Unpack[How]) -> alt.LayerChart:
        """Returns the samples of each class at each client, of the first seed; it reads the data set."""
        return self._draw("partition", only, **how)

    def _draw(self, name: str, only: str, **how: Unpack[How]) -> alt.LayerChart:
        store = Store(self._folder)
        rows = select_rows(store, [only] if only else None)
        chosen = Chosen(store, rows, how.get("identity", "none"), how.get("of", ""), self._spread)
        module, found, title = figure(name, chosen)
        return _offline(drawn(module, found, LIGHT, how.get("title", title), how.get("width", 520)))


class Results(Frames):
    """The tables of a results folder, as `fcilbench.load` describes them, and its charts.

    Attributes:
        plot: The charts, e.g. `results.plot.forest()`.
    """

    plot: Plots


def load(folder: Path | str, spread: Spread | None = None) -> Results:
    """Does what `fcilbench.load` says, without importing pandas or altair with the package."""
    results = Results(*load_frames(folder))
    results.plot = Plots(Path(folder), spread)
    return results


def _offline(chart: alt.LayerChart) -> alt.LayerChart:
    """Returns a chart that a notebook shows as SVG: the usual renderer of Altair loads a script from the network."""
    object.__setattr__(chart, "__class__", _picture())  # an attribute that is set is one of the description
    return chart


@functools.cache
def _picture() -> type[alt.LayerChart]:
    import altair as alt

    class Picture(alt.LayerChart):
        """A chart that shows itself without a network, unless another renderer of Altair was chosen."""

        def _repr_mimebundle_(self, *args: Any, **kwds: Any) -> Any:
            if alt.renderers.active != "default":
                return super()._repr_mimebundle_(*args, **kwds)
            return {"image/svg+xml": svg(self.to_dict()), "text/plain": "a chart of fcilbench"}

    return Picture
