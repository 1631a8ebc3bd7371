// Pinned methods: compared head to head, named in the chart of bytes, and with a colour among the learning curves.
import { $, D, make } from "./base.js";
import { datasets, draw } from "./draw.js";
import { named } from "./panels.js";
import { choose, numbers, pinned, scenes, single, state, view } from "./state.js";

const MOST = 8;

export async function showPins(open, current) {
  const all = scenes(), scene = single();
  $("s-pins").hidden = scene === undefined;
  if (scene === undefined) return;
  $("of").replaceChildren(...all.map(each => make("option", { value: named(each), selected: each === scene }, named(each))));
  $("of").parentElement.hidden = all.length < 2;
  await drawPinned(scene, open, current);
}

async function drawPinned(scene, open, current) {
  showChips(scene, open, current);
  showVersus(scene, open);
  await showBytes(scene, open);
  if (current()) await showCurves(scene, open);
}

function showChips(scene, open, current) {
  const { methods } = D.versus[`${scene}.${numbers().task}`], on = pinned(scene);
  const change = async (show, method) => {
    choose({ show }, false);
    await drawPinned(scene, open, current);
    [...$("chips").children].find(chip => chip.textContent === method)?.focus();
  };
  const toggle = method => change(on.includes(method) ? on.filter(each => each !== method) : [...on, method], method);
  $("chips").replaceChildren(
    ...methods.map(method => make("button", { type: "button", "aria-pressed": String(on.includes(method)), disabled: on.length >= MOST && !on.includes(method),
      style: on.includes(method) ? `color: var(--c${on.indexOf(method)})` : null, click: () => toggle(method) }, method)),
    make("button", { type: "button", class: "plain", disabled: !state.show.length, click: () => change([], "") }, "as at first"));
}

// Returns the difference of one method minus another in the scenario's metric, from the pairs that Python made.
function difference(own, one, other) {
  const n = own.methods.length, [low, high] = one < other ? [one, other] : [other, one];
  const pair = own.pairs[low * n - low * (low + 1) / 2 + high - low - 1];
  if (!pair) return null;
  const [text, p, told] = pair;
  const turned = one < other ? text : text.replace(/^[+-]/, sign => sign === "+" ? "-" : "+");
  return { text: turned, p, told, up: turned.startsWith("+") };
}

function showVersus(scene, open) {
  const own = D.versus[`${scene}.${numbers().task}`], on = pinned(scene);
  const order = own.methods.filter(method => on.includes(method)), at = method => own.methods.indexOf(method);
  const cell = (row, column) => {
    if (row === column) return make("td", { class: "same" }, "–");
    const found = difference(own, at(row), at(column));
    if (!found) return make("td", {}, "no seed in common");
    const better = found.up === own.higher;
    return make("td", { class: found.told ? (better ? "won" : "lost") : "open" }, make("span", {}, found.text),
      make("small", {}, found.p ? `p ${found.p}${found.told ? (better ? " ▲" : " ▼") : ""}` : "no test"));
  };
  $("versus").replaceChildren(order.length < 2 ? make("p", { class: "dim" }, "Pin two methods or more to compare them.") : make("table", { class: "matrix" },
    make("thead", {}, make("tr", {}, make("td"), ...order.map(method => make("th", { scope: "col" }, method)))),
    make("tbody", {}, ...order.map(row => make("tr", {}, make("th", { scope: "row" }, make("button", { type: "button", click: () => open(scene, row) }, row)), ...order.map(column => cell(row, column)))))));
  const untested = own.untested.filter(method => order.includes(method));
  $("h-versus").textContent = `Head to head on ${named(scene)}: ${own.title}`;
  $("under-versus").textContent = `Row minus column, in points of ${own.title}, seed by seed; ± half width of the 95 % interval of the difference. ${
    own.tests ? `p: paired t over common seeds, Holm over all ${own.tests} pairs of ranked methods; ▲ ▼ below 0.05.` : "No test: fewer than three seeds in common, or figures that are the same in all of them."}${
    untested.length && own.tests ? ` No test of ${untested.join(", ")}: without a rank, as the reference or a method with too few seeds.` : ""}`;
}

async function showBytes(scene, open) {
  const found = view(scene), data = datasets(found.bytes), on = pinned(scene);
  const known = new Map(datasets(found.forest).rows.map(row => [row.id, row]));
  data.rows = data.rows.map(row => {  // what both charts show is there once
    const forest = known.get(row.id);
    const own = Object.fromEntries(Object.entries(row).filter(([, value]) => value !== null && value !== undefined));
    return { ...forest, ...own, tip: `${forest.tip.split("\n").slice(0, 2).join("\n")}\n${row.sent}`, named: row.front || on.includes(row.id) };
  });
  const [, title] = D.metrics[numbers().metric];
  $("c-bytes").textContent = `${title} against the bytes of a whole run, all clients, up and down. Line: nothing is better for as few bytes.`;
  await draw($("bytes"), found.bytes.chart, data, `${title} against bytes of ${data.rows.length} methods on ${named(scene)}`, method => open(scene, method));
}

async function showCurves(scene, open) {
  const found = D.curves[`${scene}.${numbers().task}`];
  $("f-curves").hidden = !found;
  if (!found) return;
  const on = pinned(scene), data = datasets(found);
  for (const row of data.rows) row.slot = on.indexOf(row.id);
  $("c-curves").textContent = "Mean accuracy on the tasks seen, after each task. Grey: methods that are not pinned.";
  await draw($("curves"), found.chart, data, `Learning curves of ${new Set(data.rows.map(row => row.id)).size} methods on ${named(scene)}`, method => open(scene, method));
}
