// The page's data, and the few functions that make elements. Every text of a row becomes text, never markup.
import { unpack } from "./unpack.js";

export let D = null;

export async function load() {
  D = JSON.parse(await unpack(document.getElementById("data").textContent));
  return D;
}

export const $ = id => document.getElementById(id);
export const unique = list => [...new Set(list)];
export const sum = list => list.reduce((a, b) => a + b, 0);

// Returns an element; a function among the attributes is a listener, `true` and `false` set or leave out an attribute.
export function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// Returns the records of a table that is written by its columns.
export function records(columns) {
  const names = Object.keys(columns);
  return (columns[names[0]] ?? []).map((_, i) => Object.fromEntries(names.map(name => [name, columns[name][i]])));
}

// Returns a link to another site, which must be one of https.
export const away = (text, address) =>
  address.startsWith("https://") ? make("a", { href: address, rel: "noopener noreferrer" }, text) : text;

export async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // a page that was opened as a file may not use the clipboard of the newer kind
    const box = make("textarea", { readonly: true });
    box.value = text;
    (button.closest("dialog") ?? document.body).append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
    button.focus();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}
