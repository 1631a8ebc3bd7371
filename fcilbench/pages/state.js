// What is chosen stands in the address: a link shows the same page, and the browser's back goes a choice back.
import { D, unique } from "./base.js";

const EMPTY = { data: "", task: "", stress: "", metric: "", of: "", show: [], sort: "", cell: "", at: "" };
export let state = { ...EMPTY };
let first = { ...EMPTY };

// The choices when the address names none.
export function prepare() {
  first = { ...EMPTY, data: D.places.length === 1 ? D.places[0].name : D.places.length <= 6 ? "all" : D.places[0]?.name ?? "all",
    task: D.tasks[0]?.[0] ?? "", stress: D.stresses[0] ?? "", metric: D.metrics[0]?.[0] ?? "" };
}

export function read() {
  const query = new URLSearchParams(location.hash.slice(1));
  const found = { ...first };
  for (const key of Object.keys(EMPTY)) {
    if (key === "show") found.show = query.has("show") ? unique(query.getAll("show")) : first.show;
    else found[key] = query.get(key) ?? first[key];
  }
  state = possible(found, Object.keys(EMPTY).filter(key => query.has(key)));
}

export function hash() {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (key === "show") value.forEach(each => query.append(key, each));
    else if (value !== first[key]) query.append(key, value);
  }
  return `#${query}`;
}

// Changes choices. Those of the form are steps of the browser's history; what is pinned, sorted or opened is not.
export function choose(changes, step = true) {
  state = possible({ ...state, ...changes }, Object.keys(changes));
  const next = hash();
  if (next !== (location.hash || "#")) history[step ? "pushState" : "replaceState"](null, "", next);
}

// Returns choices under which something was measured: unknown ones and, if need be, those not just made are the first.
function possible(wanted, made) {
  const known = { data: ["all", ...D.places.map(place => place.name)], task: D.tasks.map(each => each[0]), stress: D.stresses, metric: D.metrics.map(each => each[0]) };
  const found = { ...wanted };
  for (const key of Object.keys(known)) if (!known[key].includes(found[key])) found[key] = first[key];
  const rest = ["metric", "stress", "data", "task"];
  for (const key of [...rest.filter(key => !made.includes(key)), ...rest]) {
    if (scenes(found).length) break;
    found[key] = [first[key], ...known[key]].find(value => scenes({ ...found, [key]: value }).length) ?? first[key];
  }
  return found;
}

// Returns the numbers of the scenarios that a choice shows.
export function scenes(choice = state) {
  const { stress, place } = numbers(choice);
  return D.scenes.flatMap((scene, i) =>
    scene.stress === stress && (place < 0 || scene.place === place) && view(i, choice) ? [i] : []);
}

export function numbers(choice = state) {
  return { task: D.tasks.findIndex(each => each[0] === choice.task), stress: D.stresses.indexOf(choice.stress),
    metric: D.metrics.findIndex(each => each[0] === choice.metric), place: D.places.findIndex(each => each.name === choice.data) };
}

export function view(scene, choice = state) {
  const { task, metric } = numbers(choice);
  return D.views[`${scene}.${task}.${metric}`];
}

// Returns the scenario of which pairs, bytes and curves are shown: the only one, or the one that is chosen beside it.
export function single() {
  const all = scenes();
  return all.find(scene => D.places[D.scenes[scene].place].name === state.of) ?? all[0];
}

// Returns the methods that are pinned in a scenario, eight at most: the reader's, or the page's own.
export function pinned(scene) {
  const own = D.versus[`${scene}.${numbers().task}`];
  if (!own) return [];
  if (!state.show.length) return own.pins;
  return state.show.filter(name => own.methods.includes(name)).slice(0, 8);
}
