// Filters the index by method, data set and question; what is chosen stands in the address.

const form = document.getElementById("filter"), boards = [...document.querySelectorAll("article")];
const tags = new Map(boards.map(board => [board, JSON.parse(board.dataset.tags)]));

function show() {
  const { method, data, question } = form.elements, word = method.value.trim().toLowerCase();
  let shown = 0;
  for (const board of boards) {
    const own = tags.get(board), findings = [...board.querySelectorAll("[data-question]")];
    const answer = findings.find(each => each.dataset.question === question.value);
    const fits = own.methods.some(each => each.toLowerCase().includes(word)) && (!data.value || own.datasets.includes(data.value));
    for (const each of findings) each.hidden = each !== answer;
    board.hidden = !fits || !answer && findings.length > 0;
    shown += !board.hidden;
    const link = board.querySelector("h2 a");
    link.setAttribute("href", link.getAttribute("href").split("#")[0] + (answer?.dataset.view ?? ""));
  }
  document.getElementById("found").textContent = `${shown} of ${boards.length} boards`;
}

function read() {
  const query = new URLSearchParams(location.hash.slice(1));
  form.elements.method.value = query.get("method") ?? "";
  for (const name of ["data", "question"]) {
    const known = [...form.elements[name].options].map(option => option.value);
    form.elements[name].value = known.includes(query.get(name)) ? query.get(name) : known[0];
  }
  show();
}

function change() {
  const query = new URLSearchParams();
  const { method, data, question } = form.elements;
  if (method.value) query.set("method", method.value);
  if (data.value) query.set("data", data.value);
  if (question.selectedIndex > 0) query.set("question", question.value);
  history.replaceState(null, "", `#${query}`);
  show();
}

form.hidden = false;
form.addEventListener("input", change);
form.addEventListener("submit", event => event.preventDefault());
addEventListener("hashchange", read);
read();
