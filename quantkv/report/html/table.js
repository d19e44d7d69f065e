// Tables: sorting by a heading, filtering by format, model and context, and one table for each kind of row.
// Own lines, as libraries of tables are larger than all the data of a page and would draw again what is there.

/** Sort keys of a cell: a number, a text, or null for what was not measured. */
function keyOf(line, column, numeric) {
  const said = line.cells[column].dataset.sort;
  if (said === "") return null;
  return numeric ? Number(said) : said;
}

/** Missing values stand last in either direction; equal ones keep their order. */
function compare(one, other, down) {
  if (one === null || other === null) return (one === null) - (other === null);
  const order = typeof one === "number" ? one - other : one.localeCompare(other, undefined, { numeric: true });
  return down ? -order : order;
}

function sortBy(head) {
  const table = head.closest("table"), body = table.tBodies[0];
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const column = head.cellIndex, numeric = head.classList.contains("number");
  const keyed = [...body.rows].map((line) => [line, keyOf(line, column, numeric)]);
  keyed.sort((a, b) => compare(a[1], b[1], down));
  body.append(...keyed.map(([line]) => line));
}

function chosenFilters() {
  const selects = [...document.querySelectorAll("select.filter")].filter((select) => select.value !== "");
  return selects.map((select) => [select.dataset.filter, select.value]);
}

/** How many rows the lines to be seen are made of. */
function rowsBehind(lines) {
  const seen = lines.filter((line) => !line.hidden);
  const rows = new Set(seen.flatMap((line) => line.dataset.rows.split(" ").filter(Boolean))).size;
  return `${rows} row${rows === 1 ? "" : "s"}`;
}

/** Show the lines that every filter lets through, in the tables of all kinds, and count those of the open one. */
function filterLines() {
  const wanted = chosenFilters();
  for (const region of document.querySelectorAll(".scroll")) {
    const lines = [...region.querySelectorAll("tbody tr")];
    for (const line of lines) line.hidden = !wanted.every(([name, value]) => line.dataset[name] === value);
    const left = lines.filter((line) => !line.hidden).length;
    region.querySelector(".none").hidden = left > 0;
    if (!region.hidden) document.getElementById("count").textContent = `${left} of ${lines.length} lines, ${rowsBehind(lines)}`;
  }
}

function showKind(button) {
  for (const other of button.parentNode.children) other.setAttribute("aria-pressed", String(other === button));
  for (const region of document.querySelectorAll(".scroll")) region.hidden = region.dataset.kind !== button.dataset.kind;
  filterLines();
}

/** Every value that some line has becomes a choice of its filter. */
function fillFilter(select) {
  const lines = document.querySelectorAll(".scroll tbody tr");
  const values = [...new Set([...lines].map((line) => line.dataset[select.dataset.filter]))];
  if (select.dataset.filter === "context") values.sort((a, b) => a - b);
  for (const value of values) select.add(new Option(value, value));
  select.addEventListener("change", filterLines);
}

function startTables(open) {
  if (!document.getElementById("kinds")) return;
  document.querySelectorAll("select.filter").forEach(fillFilter);
  document.querySelectorAll(".scroll thead th").forEach((head) => head.addEventListener("click", () => sortBy(head)));
  document.querySelectorAll("#kinds button").forEach((b) => b.addEventListener("click", () => showKind(b)));
  document.querySelectorAll(".scroll tbody").forEach((body) => body.addEventListener("click", (event) => {
    const line = event.target.closest("tr");
    if (getSelection().isCollapsed) open(line.dataset.rows.split(" ").filter(Boolean).map(Number));
  }));
  filterLines();
}
