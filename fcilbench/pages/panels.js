// The finding and the forest plots: the methods of each scenario by their score.
import { $, D, make } from "./base.js";
import { datasets, draw } from "./draw.js";
import { numbers, scenes, state, view } from "./state.js";

export function showFinding() {
  const { task, stress, metric, place } = numbers();
  const [lead, rest] = D.findings[`${place < 0 ? "all" : place}.${task}.${stress}.${metric}`] ?? ["Nothing was measured for this choice.", ""];
  $("finding").replaceChildren(make("b", {}, lead), rest);
}

export const named = scene => D.places[D.scenes[scene].place].name;

export async function showPanels(open, current) {
  const [, , better, axis] = D.metrics[numbers().metric] ?? ["", "", "", ""];
  const all = scenes();
  $("h-main").textContent = `${axis}, ${better === "neither" ? "largest first" : `${better} is better, best first`}`;
  const nodes = all.map(() => make("div", { class: "chart" }));
  $("course").prepend($("f-bytes"));  // before the panels are emptied
  $("panels").replaceChildren(...all.map((scene, i) => make("figure", {},
    make("figcaption", {}, make("b", {}, named(scene)), ` ${D.scenes[scene].about}${state.stress === "none" ? "" : `, stress ${state.stress}`}`), nodes[i])));
  if (all.length === 1 && innerWidth > 1000) $("panels").append($("f-bytes"));  // beside the only forest plot
  else $("course").prepend($("f-bytes"));
  $("seeds").textContent = [...new Set(all.map(scene => D.scenes[scene].seeds))].join(" or ");
  for (const [i, scene] of all.entries()) {
    if (!current()) return;
    const { forest } = view(scene), data = datasets(forest);
    const told = data.rows.map(row => `${row.label} ${row.text}`).join("; ");
    await draw(nodes[i], forest.chart, data, `${axis} of ${data.rows.length} methods on ${named(scene)}, best first: ${told}`, method => open(scene, method));
  }
}
