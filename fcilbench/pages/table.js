// Tables that sort: the figures of the scenarios that are shown, and the other boards as they are printed.
import { $, D, away, make } from "./base.js";
import { named } from "./panels.js";
import { choose, numbers, scenes, single, state } from "./state.js";

const MARKS = { control: " ‡", reference: " §", method: "" };

export function showTable(open) {
  const all = scenes(), { task, stress, metric } = numbers();
  const several = all.length > 1;
  const found = D.tables[several ? `all.${task}.${stress}.${metric}` : `${all[0]}.${task}`];
  if (!found) return $("table").replaceChildren();
  const ranking = several ? found.heads.length - 2 : Math.max(0, columnOf(found, D.metrics[metric][1]));
  const [column, way] = state.sort.split(".");
  const at = column !== "" && Number(column) >= -1 && Number(column) < found.heads.length ? Number(column) : ranking;
  const up = way ? way === "up" : at < 0 || found.heads[at][1];
  const where = method => all.find(scene => D.scenes[scene].cells.some(([name]) => name === method));
  const sort = (column, up) => choose({ sort: `${column}.${up ? "up" : "down"}` }, false);
  const node = tableOf(found, at, up, { sort, open: method => open(where(method), method), source: found.rows.some(row => row.source[0]) });
  $("table").replaceChildren(node);
  $("under").textContent = `± half width of the 95 % interval over seeds (Student t); (n=…) where it is missing or covers fewer seeds. ‡ control, § reference, which has no rank. ${
    several ? "Mean place: of the means alone, over the data sets shown; a summary and no test." : "Places: what the paired tests leave open (Holm). The best mean is marked, whether or not a test tells it from the next."}`;
}

// Returns a table whose heads sort it; without `how.sort` it sorts itself.
export function tableOf(found, at, up, how) {
  const rows = sorted(found, at, up);
  const table = make("table");
  const head = (text, column, up) => make("th", { scope: "col", ...(column === at ? { "aria-sort": up ? "ascending" : "descending" } : {}) },
    make("button", { type: "button", click: () => again(column) }, text));
  const again = column => {
    const next = column === at ? !up : column < 0 || found.heads[column][1];
    if (how.sort) how.sort(column, next);
    const fresh = tableOf(found, column, next, how);
    table.replaceWith(fresh);
    fresh.querySelectorAll("th button")[column + 1].focus();
  };
  table.append(
    make("thead", {}, make("tr", {}, head("method", -1, up), ...found.heads.map(([text], column) => head(text, column, up)), ...(how.source ? [make("th", { scope: "col", class: "text" }, "source")] : []))),
    make("tbody", {}, ...rows.map(row => make("tr", { class: row.kind },
      make("th", { scope: "row" }, how.open ? make("button", { type: "button", click: () => how.open(row.method) }, row.method) : row.method, MARKS[row.kind] ?? ""),
      ...row.cells.map(([text, , best, below]) => make("td", best ? { class: "best" } : {}, text, ...(how.below && below ? [make("small", {}, below)] : []))),
      ...(how.source ? [make("td", { class: "text" }, away(row.source[0], row.source[1]))] : [])))));
  return table;
}

// Returns rows in the order of a column; what is undefined comes last.
function sorted(found, at, up) {
  const key = row => at < 0 ? row.method : row.cells[at][1] === true ? parseFloat(row.cells[at][0]) : row.cells[at][1];
  return [...found.rows].sort((a, b) => {
    const [one, two] = [key(a), key(b)];
    if (one === null || two === null) return (one === null) - (two === null);
    return (typeof one === "string" ? one.localeCompare(two) : one - two) * (up ? 1 : -1);
  });
}

// The table that is shown as CSV; what a spreadsheet would compute gets an apostrophe in front.
export function csv() {
  const field = text => {
    const plain = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text);
    const safe = /^\s*[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(text) && !plain ? `'${text}` : text;
    return `"${safe.replaceAll('"', '""')}"`;
  };
  return [...$("table").querySelectorAll("tr")].map(row => [...row.cells].map(cell => field(cell.textContent)).join(",")).join("\n") + "\n";
}

// The metric under every task identity and selector, of the scenario that the pinned methods are compared on.
export function showIdentities(open) {
  const scene = single(), title = D.metrics[numbers().metric]?.[1], { against } = D.scenes[scene] ?? {};
  const own = D.tasks.flatMap(([key], task) => {
    const table = D.tables[`${scene}.${task}`], column = table ? columnOf(table, title) : -1;
    return column < 0 ? [] : [{ key, up: table.heads[column][1], rows: table.rows, column }];
  });
  $("s-identities").hidden = own.length < 2;
  if (own.length < 2) return;
  const cells = method => own.map(({ rows, column }) => rows.find(row => row.method === method)?.cells[column] ?? ["–", null, false, ""]);
  const found = { heads: own.map(({ key, up }) => [key, up]), rows: own[0].rows.map(row => ({ ...row, cells: cells(row.method) })) };
  const gaps = against && found.rows.some(row => row.cells.some(cell => cell[3]));
  const at = Math.max(0, own.findIndex(each => each.key === state.task));
  $("identities").replaceChildren(tableOf(found, at, own[at].up, { open: method => open(scene, method), below: true }));
  $("h-identities").textContent = `Every way to tell the task: ${title} on ${named(scene)}`;
  $("under-identities").textContent = `A column is what methods are told of a sample's task; under inferred:NAME the selector NAME picks it for all of them.${
    gaps ? ` Below a figure: its paired difference to ${against}, which has one model for all tasks, in the same column, with its 95 % interval and without a test.` : ""}`;
}

const columnOf = (table, title) => table.heads.findIndex(([text]) => text.startsWith(title));

// The other boards, of the scenarios that are shown.
export function showBoards(open) {
  const { task, stress, place } = numbers();
  const parts = D.boards.flatMap(board => {
    const own = board.blocks.filter(block => (block.place === null || place < 0 || block.place === place) && (block.stress === null || block.stress === stress));
    const tables = own.flatMap(block => block.tables.filter(table => !D.tasks.some(([key]) => key === table.task) || table.task === state.task)
      .map(table => make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${board.title}, ${block.heading}, ${table.title}` },
        make("h3", {}, block.heading, make("span", { class: "dim" }, ` ${table.title}${block.hardware ? `, ${block.hardware}` : ""}`)), tableOf(table, -1, true, {}))));
    return tables.length ? [make("details", {}, make("summary", {}, `${board.title} (${tables.length} ${tables.length === 1 ? "table" : "tables"})`), ...tables)] : [];
  });
  $("boards").replaceChildren(...parts);
  $("s-boards").hidden = !parts.length;
}
