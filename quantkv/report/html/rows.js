// Where a number comes from: the whole row behind it, in a dialog. All of it is put there as text.

function element(name, text = "", children = []) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** Names and values of a section, those of sections within it as `machine.cpu`. */
function entries(section, prefix = "") {
  return Object.entries(section ?? {}).flatMap(([name, value]) =>
    isObject(value) ? entries(value, `${prefix}${name}.`) : [[prefix + name, value]]);
}

function textOf(value) {
  if (value === null || value === undefined || value === "") return "—";
  if (Array.isArray(value)) return value.length ? value.map((item) => (isObject(item) ? JSON.stringify(item) : textOf(item))).join("; ") : "none";
  return String(value);
}

function isLong(value) {
  return Array.isArray(value) && value.some((item) => item !== null && typeof item === "object");
}

function valuesTable(section) {
  const lines = entries(section).filter(([, value]) => !isLong(value)).map(([name, value]) =>
    element("tr", "", [element("th", name), element("td", textOf(value))]));
  return element("table", "", [element("tbody", "", lines)]);
}

/** What was asked for beside what ran; a line where both are known and differ is marked. */
function askedAndRan(row) {
  const asked = Object.fromEntries(entries(row.requested)), ran = Object.fromEntries(entries(row.effective));
  const names = [...new Set([...Object.keys(asked), ...Object.keys(ran)])];
  const lines = names.map((name) => {
    const both = name in asked && name in ran && asked[name] !== null && ran[name] !== null;
    const line = element("tr", "", [element("th", name), element("td", name in asked ? textOf(asked[name]) : ""), element("td", name in ran ? textOf(ran[name]) : "")]);
    if (both && textOf(asked[name]) !== textOf(ran[name])) line.className = "differs";
    return line;
  });
  const head = element("tr", "", ["", "requested", "effective"].map((text) => element("th", text)));
  return element("table", "", [element("thead", "", [head]), element("tbody", "", lines)]);
}

/** Lists of records, such as the windows of a quality row: folded, a line each. */
function lists(section) {
  return entries(section).filter(([, value]) => isLong(value)).map(([name, items]) => {
    const names = [...new Set(items.flatMap((item) => Object.keys(item ?? {})))];
    const head = element("tr", "", names.map((text) => element("th", text)));
    const lines = items.map((item) => element("tr", "", names.map((key) => element("td", textOf(item?.[key])))));
    const table = element("table", "", [element("thead", "", [head]), element("tbody", "", lines)]);
    return element("details", "", [element("summary", `${name} (${items.length})`), table]);
  });
}

function rowArticle(row, label) {
  const made = row.provenance ?? {};
  const when = made.started ? `, ${made.started}` : "";
  const parts = [element("h3", `${row.kind} of ${label} at ${row.requested.context}${when}`)];
  if (row.status !== "ok") parts.push(element("p", `${row.status}: ${row.reason ?? "no reason was recorded"}`));
  const sections = [["what was measured", row[row.kind]], ["protocol", row.protocol], ["made with", made]];
  parts.push(element("h4", "asked and run"), askedAndRan(row));
  for (const [title, section] of sections) {
    if (entries(section).length) parts.push(element("h4", title), valuesTable(section), ...lists(section));
  }
  parts.push(element("h4", "row"), valuesTable({ key: row.key, schema: row.schema, status: row.status }));
  const whole = element("details", "", [element("summary", "the row as JSON"), element("pre", JSON.stringify(row, null, 1))]);
  return element("article", "", [...parts, whole]);
}

function startRows(data) {
  const dialog = document.getElementById("rows");
  document.getElementById("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  return (numbers) => {
    if (!numbers.length) return;
    const first = data.rows[numbers[0]];
    document.getElementById("rows-title").textContent = `${data.labels[numbers[0]]} at ${first.requested.context} tokens, ${first.requested.model}`;
    document.getElementById("rows-body").replaceChildren(...numbers.map((at) => rowArticle(data.rows[at], data.labels[at])));
    dialog.showModal();
    dialog.scrollTop = 0;
  };
}
