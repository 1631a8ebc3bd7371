// The cells behind a figure: one for each seed, with its accuracies, losses, parameters and the line that trains it again.
import { $, D, away, copy, make, records } from "./base.js";
import { draw } from "./draw.js";
import { named } from "./panels.js";
import { choose, numbers, state } from "./state.js";

const dialog = () => $("dialog");
let cells = null;
let log = "";  // what a reader chose of what a method logs

export function prepareDialog() {
  cells = records(D.cells);
  $("close").addEventListener("click", () => dialog().close());
  dialog().addEventListener("click", event => { if (event.target === dialog()) dialog().close(); });
  dialog().addEventListener("close", () => choose({ cell: "", at: "" }, false));
}

// Opens what the address names, or closes what it names no more.
export async function followAddress(scenes) {
  const scene = scenes.find(each => named(each) === state.at);
  if (state.cell && scene !== undefined && D.scenes[scene].cells.some(([name]) => name === state.cell)) return openCells(scene, state.cell);
  if (dialog().open) dialog().close();
  else if (state.cell) choose({ cell: "", at: "" }, false);
}

export async function openCells(scene, method) {
  const own = (D.scenes[scene].cells.find(([name]) => name === method)?.[1] ?? []).map(place => cells[place]).sort((a, b) => a.seed - b.seed);
  choose({ cell: method, at: named(scene) }, false);
  $("d-title").textContent = `${method} on ${named(scene)}`;
  const paper = D.papers.find(([name]) => name === method);
  $("d-about").replaceChildren(...(paper ? ["Source: ", away(paper[1], paper[2]), ". "] : []), own.length ? "" : "No cell has run yet.");
  const box = make("div");
  const pick = make("select", { change: () => show(own[pick.value]) }, ...own.map((cell, i) => make("option", { value: i }, `${cell.seed} (${cell.status})`)));
  $("cell").replaceChildren(...(own.length ? [make("label", { class: "pick" }, "Seed ", pick), box] : []));
  if (!dialog().open) dialog().showModal();
  const show = async cell => {
    const key = D.tasks[numbers().task][0], matrix = cell.matrix[key];
    const facts = pairs => make("dl", {}, ...pairs.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
    const zip = (names, texts) => names.map((name, i) => [name, texts[i] ?? ""]).filter(([, text]) => text);
    const pictures = make("div", { class: "pair" });
    box.replaceChildren(
      ...(cell.status === "ok" && D.source ? [again(cell.id)] : []), pictures,
      make("h3", {}, "Cell"), facts([...cell.about, ["environment", D.envs[cell.env]]]),
      ...(cell.metrics.some(Boolean) ? [make("h3", {}, "Metrics, in % where they are accuracies"), facts(zip(D.names.metrics, cell.metrics))] : []),
      ...(cell.cost.some(Boolean) ? [make("h3", {}, "Cost"), facts(zip(D.names.cost, cell.cost))] : []),
      make("details", {}, make("summary", {}, `Parameters (${D.params[cell.params].length})`), facts(D.params[cell.params])));
    const tasks = begins(cell.loss.length, matrix?.length);
    if (matrix) await picture(pictures, `Accuracy in % on each task after each task, ${key}`, `m${matrix.length}`, { rows: squares(matrix) });
    if (matrix) await picture(pictures, `Points lost on each task since its best accuracy, ${key}`, `f${matrix.length}`, { rows: squares(forgotten(matrix), text => `${text} points lost`) });
    if (cell.loss.some(value => value !== null)) await picture(pictures, "Training loss of each round", "loss", { rows: points(cell.loss.map((value, i) => [i + 1, value])), tasks });
    await logged(pictures, cell.logs, tasks);
  };
  if (own.length) await show(own[0]);
}

function again(id) {
  const line = `fcilbench reproduce ${id} --from ${D.source}`;
  const button = make("button", { type: "button", click: () => copy(line, button) }, "Copy");
  return make("p", { class: "again" }, "Train it again: ", make("code", {}, line), " ", button);
}

async function picture(box, caption, name, data) {
  if (D.dialog[name] === undefined) return;
  const node = make("div", { class: "chart" });
  box.append(make("figure", {}, make("figcaption", {}, caption), node));
  await draw(node, D.dialog[name], data, caption, null);
}

// Draws one of the things that a method logged in each round; a list chooses which.
async function logged(box, logs, tasks) {
  const names = Object.keys(logs), node = make("div", { class: "chart" });
  if (!names.length) return;
  const show = name => draw(node, D.dialog.logs, { rows: points(logs[name]), tasks }, `${name} in each round`, null);
  const chosen = names.includes(log) ? log : names[0];
  const which = make("select", { change: () => { log = which.value; show(log); } }, ...names.map(name => make("option", { value: name, selected: name === chosen }, name)));
  box.append(make("figure", {}, make("figcaption", {}, make("label", { class: "pick" }, "Logged by the method ", which)), node));
  await show(chosen);
}

// Returns the squares of a matrix; a whole number in them is rounded as Python does, half to even.
function squares(matrix, told = text => `accuracy ${text} %`) {
  const whole = value => value % 1 === 0.5 ? 2 * Math.round(value / 2) : Math.round(value);
  return matrix.flatMap((line, t) => line.flatMap((text, s) => text === "" ? [] : [{ after: t + 1, task: s + 1, value: Number(text),
    dark: Number(text) > 55, text: matrix.length > 12 ? "" : String(whole(Number(text))), tip: `${told(text)} on task ${s + 1} after task ${t + 1}` }]));
}

// Returns the best accuracy on each task so far less that after each task, as `fcilbench.charts.forgetting` does: a page that
// held these matrices beside those of the accuracies would be too large.
function forgotten(matrix) {
  const seen = (t, s) => matrix.slice(s, t + 1).map(line => line[s]).filter(text => text !== "").map(Number);
  return matrix.map((line, t) => line.map((text, s) => text === "" ? "" : (Math.max(...seen(t, s)) - Number(text)).toFixed(2)));
}

// Returns where the second and later tasks begin, if all tasks have as many rounds.
function begins(rounds, tasks) {
  return !tasks || rounds % tasks ? [] : Array.from({ length: tasks - 1 }, (_, i) => ({ x: (i + 1) * rounds / tasks + 0.5 }));
}

// Returns the points of one line, from pairs of a round and its value.
function points(pairs) {
  const known = pairs.filter(([, value]) => value !== null);
  return known.map(([x, mean], i) => ({ id: "", line: 0, name: "", x, mean, lo: null, hi: null, slot: 0, tip: `round ${x}: ${mean}`, last: i === known.length - 1, alone: known.length === 1 }));
}
