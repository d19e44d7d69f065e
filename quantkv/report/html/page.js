// Starts the page: theme, plots of the chosen study, legend, tables.

const data = JSON.parse(document.getElementById("data").textContent);
const openRows = startRows(data);
const hidden = new Set(); // labels of the formats that the reader hid, in every study
let chosen = 0, context = null;

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });
}

function drawnLabels(study) {
  return new Set(study.charts.flatMap((chart) => [...chart.points, ...chart.failed].map((p) => p.format)));
}

function drawLegend() {
  const study = data.studies[chosen], labels = drawnLabels(study);
  const chips = study.formats.filter((look) => labels.has(look.label)).map((look) => {
    const chip = element("button", "", [markerIcon(look), element("span", look.label)]);
    chip.type = "button";
    chip.className = "chip";
    chip.setAttribute("aria-pressed", String(!hidden.has(look.label)));
    chip.addEventListener("click", () => {
      if (!hidden.delete(look.label)) hidden.add(look.label);
      chip.setAttribute("aria-pressed", String(!hidden.has(look.label)));
      drawCharts();
    });
    return chip;
  });
  document.getElementById("legend").replaceChildren(...chips);
}

/** Which context the plot of bits against quality shows. */
function contextChoice(study) {
  const select = element("select");
  select.id = "context";
  const known = study.contexts.filter((c) => study.charts[0].points.some((p) => p.context === c));
  if (!known.includes(context)) context = known.at(-1);
  for (const one of known) select.add(new Option(one, one, false, one === context));
  select.addEventListener("change", () => { context = Number(select.value); drawCharts(); });
  return element("label", "context ", [select]);
}

function layCharts() {
  const study = data.studies[chosen];
  const figures = study.charts.map((chart) => {
    const head = element("div", "", [element("h3", chart.title)]);
    head.className = "chart-head";
    if (chart.name === "pareto") head.append(contextChoice(study));
    const place = element("div");
    place.className = "chart";
    return element("figure", "", [head, place, element("figcaption", chart.note)]);
  });
  document.getElementById("charts").replaceChildren(...figures);
  drawLegend();
  drawCharts();
}

function drawCharts() {
  const study = data.studies[chosen];
  const shown = study.formats.filter((look) => !hidden.has(look.label));
  document.querySelectorAll("#charts .chart").forEach((place, index) => {
    const width = Math.max(240, place.clientWidth);
    place.replaceChildren(drawChart(study.charts[index], study, shown, context, width, openRows));
  });
}

/** Draws again only when the width changes: the height follows from drawing. */
function drawOnResize() {
  const charts = document.getElementById("charts");
  let width = charts.clientWidth;
  new ResizeObserver(() => {
    if (charts.clientWidth === width) return;
    width = charts.clientWidth;
    requestAnimationFrame(drawCharts);
  }).observe(charts);
}

function startPlots() {
  const select = document.getElementById("study");
  if (!select) return;
  select.addEventListener("change", () => { chosen = Number(select.value); layCharts(); });
  document.querySelectorAll(".marker").forEach((place) => {
    const look = data.studies[Number(place.dataset.study)].formats.find((own) => own.label === place.dataset.format);
    place.append(markerIcon(look));
  });
  layCharts();
  drawOnResize();
}

startTheme();
startPlots();
startTables(openRows);
