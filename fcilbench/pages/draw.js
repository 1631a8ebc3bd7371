// Draws a description of a chart with its data: vega-embed interprets it, so no text becomes code.
import { $, D, records } from "./base.js";

const views = new Map();

// Returns the data sets of a view, as records.
export const datasets = view => Object.fromEntries(Object.entries(view.data).map(([name, columns]) => [name, records(columns)]));

// Draws a chart in a node. `open` is called with the method of a mark or of a label that is clicked.
export async function draw(node, chart, data, describe, open) {
  const description = structuredClone(D.charts[chart]);
  description.datasets = data;
  description.description = describe;
  if (node.clientWidth < 500) description.config.axisY.labelLimit = 140;
  clear(node);
  const { view } = await vegaEmbed(node, description, { renderer: "svg", actions: false, ast: true, defaultStyle: false, logLevel: 1, tooltip });
  views.set(node, view);
  for (const mark of node.querySelectorAll("[role=graphics-symbol]:not([aria-label])")) mark.setAttribute("aria-hidden", "true");  // it has no marks
  if (!open) return;
  const labels = new Map((data.rows ?? []).map(row => [row.label, row.id]));
  view.addEventListener("click", (_, item) => {
    const id = item?.datum?.id ?? labels.get(item?.datum?.value);
    if (id !== undefined) open(id);
  });
}

// Forgets the charts of a node and of those that left the page.
function clear(node) {
  for (const [known, view] of views) {
    if (known === node || !known.isConnected) {
      view.finalize();
      views.delete(known);
    }
  }
}

function tooltip(_, event, item, value) {
  const box = $("tip");
  box.textContent = value ? String(value.tip ?? value) : "";
  (document.querySelector("dialog[open]") ?? document.body).append(box);  // above a dialog that is open
  if (!value) return;
  box.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${event.clientY + 16 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 8 : event.clientY + 16}px`;
}
