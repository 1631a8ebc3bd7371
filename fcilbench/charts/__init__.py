"""One description of each chart, for the HTML page, the notebook and the paper.

Each chart is a module with two plain functions. `data(...)` returns rows by the name of their data set; every text that
is shown is made there, once. `chart(theme, title, width, **layout)` returns an Altair chart that refers to these names
and holds no data: no name of a method is in a description. `layout` is the one row of the data set `layout` (what the
description must know of the rows: how many, how long). `fcilbench.charts.draw.drawn` puts both together.

Columns `id` hold the name of a method as its board has it (`Entry.aggregator`): a click on a mark has it in its datum.
`text` and `tip` are shown as they are; a tip has several lines. `kind` is method, control or reference. Ratios are in
per cent.

`forest.data(block, key, metric=None)`, best first
    `rows`: id, label, kind, mean, lo, hi, values (a list), text, tip. `lines`: id, kind, mean.
    `layout`: rows, room, axis.
`bytes.data(block, key, rows_by_cell_id, metric=None, chosen=None)`
    `rows`: id, name, kind, bytes, mean, lo, hi, front, named, side, text, tip. `front`: bytes, mean.
    `lines` (no bytes sent): id, name, kind, mean, side, tip. `layout`: span, axis.
`curves.data(block, key, rows_by_cell_id, rounds=None, chosen=None)`
    `rows`: id, line, name, kind, x, mean, lo, hi, slot, last, alone, text, tip. `layout`: room, span, dots, ticks.
`matrix.data(matrices_of_the_seeds_of_a_method)`
    `rows`: after, task, value, dark, text, tip (no id: all of one method). `layout`: tasks.

`loss`, `diagnostics`, `severity`, `sweep` and `budget` have the columns of `curves`, the first two also `tasks`: x. The
data of `forgetting` are those of `matrix`, those of `critical_difference`, `partition` and `slices` are told there.
`choose` makes each figure of the rows of a folder, by its name; `notebook` and `fcilbench figure` take it from there.

A page may change `slot` of `curves` (-1 is grey, 0 to 7 have a colour and a name) and `named` of `bytes` by itself:
names are pushed apart in the description. `width` is that of the whole picture, or `"container"`; then the largest
width of a label is `config.axisY.labelLimit`, which is to be about 140 on a narrow screen. The theme `PAGE` needs a CSS
variable for each name of `fcilbench.charts.theme.LIGHT_COLOURS`.
"""
