// Puts the page together: the form of choices, and what is drawn again when one of them changes.
import { $, D, copy, load, make } from "./base.js";
import { followAddress, openCells, prepareDialog } from "./dialog.js";
import { showFurther } from "./further.js";
import { showFinding, showPanels } from "./panels.js";
import { showPins } from "./pins.js";
import { choose, hash, prepare, read, scenes, state } from "./state.js";
import { csv, showBoards, showIdentities, showTable } from "./table.js";

let turn = 0, queue = Promise.resolve();

// Draws everything anew. A later call stops an earlier one between two charts.
function redraw() {
  const own = ++turn, current = () => own === turn;
  document.body.dataset.ready = "";
  showForm();
  showFinding();
  showTable(openCells);
  showIdentities(openCells);
  showBoards(openCells);
  queue = queue.then(async () => {
    if (!current()) return;
    await showPanels(openCells, current);
    document.body.dataset.ready = "first";
    if (current()) await followAddress(scenes());
    if (current()) await showPins(openCells, current);
    if (current()) await showFurther(openCells, current);
    if (current()) document.body.dataset.ready = "all";
  });
  return queue;
}

function showForm() {
  const options = (name, list) => {
    const node = $("choices").elements[name];
    node.replaceChildren(...list.map(([value, text]) => make("option", { value, selected: value === state[name] }, text)));
    node.value = state[name];
    node.closest("label").hidden = list.length < 2;
  };
  const places = D.places.map(place => [place.name, place.name]);
  options("data", places.length > 1 ? [["all", "all, side by side"], ...places] : places);
  options("stress", D.stresses.map(each => [each, each || "none"]));
  options("metric", D.metrics.map(([key, title, better]) => [key, better === "neither" ? title : `${title} (${better} is better)`]));
  const box = $("tasks");
  if (!box.children.length) {
    box.append(...D.tasks.map(([value, text]) => make("label", {}, make("input", { type: "radio", name: "task", value }), make("span", {}, text))));
  }
  for (const input of box.querySelectorAll("input")) input.checked = input.value === state.task;
  const label = D.tasks.find(each => each[0] === state.task)?.[1] ?? "";
  $("chosen").textContent = `Choices: ${[state.data === "all" ? "all data sets" : state.data, `task ${label}`, `stress ${state.stress}`, D.metrics.find(each => each[0] === state.metric)?.[1]].join(", ")}`;
  for (const link of $("views").querySelectorAll("a")) link.toggleAttribute("aria-current", link.getAttribute("href") === hash() || (link.getAttribute("href") === "#" && hash() === "#"));
}

function prepareControls() {
  $("choices").addEventListener("change", event => {
    choose({ [event.target.name]: event.target.value, sort: "" });
    redraw();
  });
  $("choices").addEventListener("submit", event => event.preventDefault());
  $("of").addEventListener("change", event => {
    choose({ of: event.target.value }, false);
    redraw();
  });
  $("share").addEventListener("click", () => copy(location.href, $("share")));
  $("csv").addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    make("a", { href: address, download: `${D.title}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  });
  $("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches, set = document.documentElement.dataset;
    set.theme = (set.theme ?? (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
  });
  $("cite").addEventListener("click", () => copy($("bibtex").textContent, $("cite")));
  $("skip").addEventListener("click", event => {  // an ordinary anchor would overwrite the choices in the address
    event.preventDefault();
    $("table").focus();
    $("table").scrollIntoView();
  });
  $("fold").open = innerWidth >= 640;
  for (const event of ["hashchange", "popstate"]) addEventListener(event, () => { read(); redraw(); });
}

load().then(() => {
  prepare();
  read();
  prepareDialog();
  prepareControls();
  return redraw();
});
