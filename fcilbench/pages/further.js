// What not every board has: mean ranks over scenarios, and charts of stress, hyperparameters and the partition.
import { $, D, make } from "./base.js";
import { datasets, draw } from "./draw.js";
import { numbers, pinned, scenes, state } from "./state.js";

export async function showFurther(open, current) {
  const { task } = numbers(), all = scenes();
  const of = place => all.find(scene => D.scenes[scene].place === place);
  const charts = D.more.filter(each => (each.task === null || each.task === task) && (each.stress === null || each.stress === state.stress)
    && (each.place === null || of(each.place) !== undefined));
  const ranks = D.overall.filter(each => each.task === task).map(meanRanks);
  const nodes = charts.map(() => make("div", { class: "chart" }));
  $("further").replaceChildren(...charts.map((each, i) => make("figure", {}, make("figcaption", {}, make("b", {}, each.title), ` ${each.about}`), nodes[i])), ...ranks);
  $("s-further").hidden = !ranks.length && !charts.length;
  for (const [i, each] of charts.entries()) {
    if (!current()) return;
    const data = datasets(each), scene = of(each.place);
    if (each.pins) {  // of a reader who pinned none the chart has its own
      const on = state.show.length ? pinned(scene) : null;
      for (const row of data.rows) row.slot = on ? on.indexOf(row.id) : row.slot;
    }
    await draw(nodes[i], each.chart, data, `${each.title} ${each.about}`, scene === undefined ? null : method => open(scene, method));
  }
}

function meanRanks(found) {
  const rows = [...found.methods, ...found.left_out.map(name => [name, "–"])];
  return make("details", {}, make("summary", {}, `Mean ranks in ${found.metric} over ${found.over} scenarios without stress, as a table`),
    make("p", { class: "dim" }, `Of methods with a rank in each of them. Differences below ${found.difference} are not told apart (Nemenyi, 5 %).`),
    make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "method"), make("th", { scope: "col" }, "mean rank"))),
      make("tbody", {}, ...rows.map(([name, rank]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, rank))))));
}
