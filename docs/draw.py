"""Draws the pictures of the pages as SVG, for light and dark, into docs/pictures: `python docs/draw.py`.

They are small drawings with examples that are made up to explain; none of them shows a result.
"""

import sys
from html import escape
from pathlib import Path

WIDTH = 480
"""Units of every picture's width: on a telephone's screen, text of 13 units is about 10 pixels high."""
STYLE = """
svg { color-scheme: light dark; font-family: system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; }
.ground { fill: #ffffff; } .box { fill: #f3f5f8; stroke: #9aa5b1; } .on { fill: #cfe3f6; stroke: #1f6fb2; }
.line { stroke: #5b6673; fill: none; stroke-width: 1.4; } .tip { fill: #5b6673; }
.bar { stroke: #1f6fb2; stroke-width: 2; } .dot { fill: #1f6fb2; } .dash { stroke-dasharray: 4 3; }
text { fill: #1d242c; font-size: 13px; } .bold { font-weight: 600; } .small { font-size: 11.5px; fill: #4a5560; }
@media (prefers-color-scheme: dark) {
  .ground { fill: #131416; } .box { fill: #22262b; stroke: #66707b; } .on { fill: #173a5c; stroke: #6db3ee; }
  .line { stroke: #a8b2bd; } .tip { fill: #a8b2bd; } .bar { stroke: #6db3ee; } .dot { fill: #6db3ee; }
  text { fill: #e8ebee; } .small { fill: #b4bdc6; }
}
"""


def svg(height: float, about: str, *parts: str) -> str:
    """Returns a whole picture; `about` describes it to who cannot see it."""
    ground = f'<rect class="ground" width="{WIDTH}" height="{height}" rx="6"/>'
    body = "\n".join([f"<title>{escape(about)}</title>", f"<style>{STYLE}</style>", ground, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n{body}\n</svg>\n'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Returns a line of text."""
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, title: str, *lines: str, kind: str = "box") -> str:
    """Returns a box with a title and lines of small text in its middle."""
    middle, top = x + width / 2, y + height / 2 - 7.5 * len(lines) + 4.5
    shape = f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'
    more = [text(middle, top + 16 * (number + 1), line, "small") for number, line in enumerate(lines)]
    return "\n".join([shape, text(middle, top, title, "bold"), *more])


def arrow(x: float, y: float, to_x: float, to_y: float, dashed: bool = False) -> str:
    """Returns a horizontal or vertical arrow."""
    length = abs(to_x - x) + abs(to_y - y)
    right, down = (to_x - x) / length, (to_y - y) / length
    back_x, back_y = to_x - 7 * right, to_y - 7 * down
    corners = f"{to_x},{to_y} {back_x + 4 * down},{back_y + 4 * right} {back_x - 4 * down},{back_y - 4 * right}"
    line = f'<path class="line{" dash" * dashed}" d="M{x} {y} L{back_x} {back_y}"/>'
    return f'{line}<polygon class="tip" points="{corners}"/>'


def way_of_data() -> str:
    """From a suite to a board."""
    upper = (("suite.yaml", "data, methods,", "seeds, protocol"), ("cells", "one point of", "the grid, one seed"))
    upper += (("plan", "what is new,", "stale or done"),)
    lower = (("boards", "means, intervals,", "ranges of places"), ("rows", "figures, costs,", "seeds, environment"))
    lower += (("training", "clients and server,", "every byte counted"),)
    parts = [box(8 + 162 * n, 10, 140, 70, *words) for n, words in enumerate(upper)]
    parts += [box(8 + 162 * n, 110, 140, 70, *words, kind="on" if n == 2 else "box") for n, words in enumerate(lower)]
    parts += [arrow(148, 45, 170, 45), arrow(310, 45, 332, 45), arrow(402, 80, 402, 110)]
    parts += [arrow(332, 145, 310, 145), arrow(170, 145, 148, 145)]
    return svg(
        190, "A suite becomes cells, a plan says which to train, training ends as rows, rows become boards.", *parts
    )


def task_identities() -> str:
    """Which classes compete for a test sample under each task identity."""
    parts = [text(188 + 104 * n, 20, f"task {n + 1}", "small") for n in range(3)]
    rows = (
        ("none", "all classes compete", (0, 1, 2)),
        ("inferred", "a rule picks a task", (2,)),
        ("oracle", "the task is told", (1,)),
    )
    for number, (name, about, on) in enumerate(rows):
        y = 34 + 58 * number
        parts += [text(12, y + 17, name, "bold", "start"), text(12, y + 33, about, "small", "start")]
        for cell in range(6):
            kind = "on" if cell // 2 in on else "box"
            x = 142 + 104 * (cell // 2) + 47 * (cell % 2)
            parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="44" height="40" rx="4"/>')
            parts.append(text(x + 22, y + 25, "abcdef"[cell], "bold" if kind == "on" else "small"))
    parts.append(
        text(
            12,
            222,
            "A sample of class c, which is of task 2. Coloured: classes that can be the answer.",
            "small",
            "start",
        )
    )
    parts.append(
        text(12, 239, "Here the rule picks task 3, so the answer is wrong whatever the model says.", "small", "start")
    )
    return svg(
        250,
        "Under none all classes compete, under inferred those of the picked task, under oracle those of the true one.",
        *parts,
    )


def channel() -> str:
    """What the channel counts."""
    parts = [
        box(10, 30, 104, 150, "client", "its own samples", "never leave"),
        box(366, 30, 104, 150, "server", "state, merged", "model"),
    ]
    parts += [
        box(178, 14, 124, 192, "", kind="on"),
        text(240, 34, "channel", "bold"),
        text(240, 197, "adds up bytes", "small"),
    ]
    flows = (
        ("model, first time", "344 MB", -1, False),
        ("model, unchanged", "0 B", -1, True),
        ("update", "344 MB", 1, False),
        ("statistics", "0.3 MB", 1, False),
    )
    for number, (name, size, side, dashed) in enumerate(flows):
        y = 62 + 33 * number
        ends = ((114, 178), (302, 366)) if side > 0 else ((366, 302), (178, 114))
        parts += [arrow(start, y, end, y, dashed) for start, end in ends]
        parts += [text(240, y - 1, name, "small"), text(240, y + 13, size, "bold")]
    return svg(
        216,
        "All that client and server exchange passes one channel, which counts it and sends nothing twice.",
        *parts,
    )


def rank_ranges() -> str:
    """What the places of a method mean: an example of five methods."""
    methods = (("alpha", 71, 2.4, "[1–2] of 5"), ("beta", 69, 2.9, "[1–3] of 5"), ("gamma", 65, 2.2, "[2–3] of 5"))
    methods += (("delta", 55, 3.0, "[4–5] of 5"), ("epsilon", 53, 2.6, "[4–5] of 5"))
    parts = [
        text(12, 20, "method", "small", "start"),
        text(220, 20, "FAA, mean and 95 % interval", "small"),
        text(468, 20, "places", "small", "end"),
    ]
    for number, (name, mean, half, places) in enumerate(methods):
        y, (low, middle, high) = (
            46 + 30 * number,
            (90 + 11.4 * (value - 48) for value in (mean - half, mean, mean + half)),
        )
        parts += [text(12, y + 4, name, "", "start"), text(468, y + 4, places, "bold", "end")]
        parts += [
            f'<path class="bar" d="M{low:.1f} {y} H{high:.1f}"/>',
            f'<circle class="dot" cx="{middle:.1f}" cy="{y}" r="4.5"/>',
        ]
    parts.append(
        text(
            12, 198, "The tests tell alpha from gamma, and neither of them from beta: so beta may be", "small", "start"
        )
    )
    parts.append(text(12, 215, "first, second or third. An invented example.", "small", "start"))
    return svg(226, "Five methods with intervals and the ranges of places that the tests leave open.", *parts)


PICTURES = {
    "way-of-data": way_of_data,
    "task-identities": task_identities,
    "channel": channel,
    "rank-ranges": rank_ranges,
}

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures"
    folder.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")
