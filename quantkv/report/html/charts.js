// Plots: every function takes what it draws and returns an element; nothing here keeps state.

const SIDE_STEP = 3; // pixels between formats of one context, so that bars of equal values stay visible
const MARKER = 1.35; // marker radius in the page for each point of its size in the printed figures

/** The marker of a format as Plot draws symbols: `size` is an area. */
function symbolOf(look) {
  return {
    draw(context, size) {
      const radius = Math.sqrt(size / Math.PI);
      if (look.outline === null) {
        context.arc(0, 0, radius, 0, 2 * Math.PI);
        return;
      }
      look.outline.forEach(([x, y], corner) => {
        if (corner) context.lineTo(1.25 * radius * x, 1.25 * radius * y);
        else context.moveTo(1.25 * radius * x, 1.25 * radius * y);
      });
      context.closePath();
    },
  };
}

/** A small drawing of the marker for the legend and the summary. */
function markerIcon(look) {
  const svg = d3.create("svg:svg").attr("width", 14).attr("height", 14).attr("viewBox", "-7 -7 14 14");
  const path = d3.path();
  symbolOf(look).draw(path, 78);
  return svg.attr("aria-hidden", "true").append("path").attr("d", path.toString())
    .attr("fill", look.color).select(function () { return this.parentNode; }).node();
}

/** Ticks of a log axis: 1, 2, 5 over a short span, powers of ten over a long one, never more than about eight. */
function logTicks([low, high]) {
  const decades = Math.log10(high / low);
  const steps = decades < 2.2 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / 8));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    if (power % every === 0) steps.forEach((step) => ticks.push(Number(`${step}e${power}`)));
  }
  return ticks.filter((tick) => tick >= low && tick <= high);
}

function tickText(value) {
  if (value >= 0.001 && value < 1e5) return String(Number(value.toPrecision(3)));
  const [digit, power] = value.toExponential(0).split("e");
  const raised = [...String(Number(power))].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  return digit === "1" ? `10${raised}` : `${digit}·10${raised}`;
}

/** Both ends of the y axis around all that is drawn; on a log axis values at or below zero lie on its lower end. */
function extent(chart, points) {
  const values = points.flatMap((p) => [p.y, p.low, p.high]).concat(chart.guides.flatMap((g) => g.points.map((p) => p.y)));
  const known = values.filter((value) => value !== null && (chart.scale !== "log" || value > 0));
  if (chart.scale === "share") return [0, 1];
  if (chart.scale !== "log") return [0, 1.06 * (d3.max(known) ?? 1)];
  const low = d3.min(known) ?? 1, high = d3.max(known) ?? 1;
  const room = Math.max(1.25, (high / low) ** 0.06);
  return [low / (values.some((value) => value !== null && value <= 0) ? 3 : room), high * room];
}

/** Marks of one format: its line, the bars of its intervals, its markers. */
function formatMarks(look, points, joined) {
  const place = { x: "px", y: "py" };
  const radius = MARKER * look.size * 0.8;
  const solid = points.filter((p) => !p.hollow), hollow = points.filter((p) => p.hollow);
  return [
    joined ? Plot.line(points, { ...place, stroke: look.color, strokeDasharray: look.dash || undefined, strokeWidth: 1.6 }) : null,
    Plot.ruleX(points.filter((p) => p.low !== null && p.high !== null),
      { x: "px", y1: "plow", y2: "phigh", stroke: look.color, strokeWidth: 1.3 }),
    Plot.dot(solid, { ...place, symbol: symbolOf(look), r: radius, fill: look.color, stroke: "var(--card)", strokeWidth: 0.8 }),
    Plot.dot(hollow, { ...place, symbol: symbolOf(look), r: radius, fill: "var(--card)", stroke: look.color, strokeWidth: 1.6 }),
  ];
}

/** Points with the place they are drawn at: within the axis, and stepped sideways where `step` says so. */
function placed(points, formats, [bottom], step) {
  return points.map((p) => {
    const at = formats.findIndex((look) => look.label === p.format) - (formats.length - 1) / 2;
    const inside = (value) => (value === null ? null : Math.max(value, bottom));
    return { ...p, px: p.x * 2 ** (at * step), py: inside(p.y), plow: inside(p.low), phigh: inside(p.high) };
  });
}

function boundMarks(chart, [bottom, top]) {
  const bounds = chart.bounds.filter((bound) => bound.y > bottom && bound.y < top);
  const unfit = chart.bounds.at(-1);
  const wash = unfit && unfit.y < top ? [{ y1: Math.max(unfit.y, bottom), y2: top }] : [];
  return [
    Plot.rect(wash, { y1: "y1", y2: "y2", fill: "var(--bad)", fillOpacity: 0.06 }),
    Plot.ruleY(bounds, { y: "y", stroke: "var(--bad)", strokeDasharray: "1.5 3", strokeWidth: 1 }),
    Plot.text(bounds, { y: "y", text: "text", frameAnchor: "right", textAnchor: "start", dx: 5, fill: "var(--bad)", fontSize: 11 }),
  ];
}

/** The formats that no other beats in both x and y, from left to right. */
function frontier(points) {
  let best = Infinity;
  return d3.sort(points, (p) => p.x, (p) => p.y).filter((p) => p.py < best && ((best = p.py), true));
}

function axes(chart, contexts, range, width) {
  const y = chart.scale === "log"
    ? { type: "log", domain: range, ticks: logTicks(range), tickFormat: tickText }
    : { domain: range, nice: false, ticks: 6 };
  if (chart.name === "pareto") {
    return { x: { label: `${chart.x} →`, nice: true, ticks: Math.round(width / 70), tickFormat: (bits) => String(Number(bits.toFixed(2))), inset: 18, labelAnchor: "center" }, y };
  }
  const room = 2 ** Math.max(0.3, 0.07 * Math.log2(contexts.at(-1) / contexts[0]));
  const domain = [contexts[0] / room, contexts.at(-1) * room];
  return { x: { type: "log", base: 2, domain, ticks: contexts, tickFormat: String, label: `${chart.x} →`, labelAnchor: "center" }, y };
}

/** Names beside the points, on the side where there is room. */
function names(points, middle) {
  const said = { x: "px", y: "py", text: "format", fill: "currentColor", stroke: "var(--card)", strokeWidth: 3 };
  return [
    Plot.text(points.filter((p) => p.x <= middle), { ...said, textAnchor: "start", dx: 9 }),
    Plot.text(points.filter((p) => p.x > middle), { ...said, textAnchor: "end", dx: -9 }),
  ];
}

/** One chart of a study as an SVG; `shown` are the looks of the formats that are not hidden. */
function drawChart(chart, study, shown, context, width, open) {
  const labels = new Set(shown.map((look) => look.label));
  const pareto = chart.name === "pareto";
  const points = chart.points.filter((p) => labels.has(p.format) && (!pareto || p.context === context));
  const range = extent(chart, points);
  const contexts = study.contexts;
  const octaves = Math.log2(contexts.at(-1) / contexts[0]) + 0.6;
  const drawnFormats = study.formats.filter((look) => points.some((p) => p.format === look.label));
  const apart = Math.min(SIDE_STEP, 40 / drawnFormats.length);
  const sideways = pareto || chart.name === "memory" ? 0 : (apart * octaves) / (width - 90);
  const ready = placed(points, drawnFormats, range, sideways);
  const failed = chart.failed.filter((p) => labels.has(p.format));
  const middle = d3.mean(d3.extent(ready, (p) => p.x)) ?? 0;
  const svg = Plot.plot({
    width, height: Math.max(270, Math.min(360, 0.62 * width)), ariaLabel: `${chart.title}: ${chart.y}`,
    marginLeft: 52, marginRight: chart.bounds.length ? 54 : 24, marginTop: 30, marginBottom: 40,
    ...axes(chart, contexts, range, width),
    marks: [
      Plot.gridY({ ticks: chart.scale === "log" ? logTicks(range) : 6, stroke: "currentColor", strokeOpacity: 0.1 }),
      Plot.axisY({ label: `↑ ${chart.y}`, ticks: chart.scale === "log" ? logTicks(range) : 6, tickFormat: chart.scale === "log" ? tickText : undefined, tickSize: 3 }),
      boundMarks(chart, range),
      chart.guides.map((guide) => Plot.line(guide.points, { x: "x", y: "y", stroke: "currentColor", strokeDasharray: "1.5 3" })),
      pareto ? Plot.line(frontier(ready), { x: "px", y: "py", stroke: "currentColor", strokeOpacity: 0.4, strokeDasharray: "5 4" }) : null,
      shown.map((look) => formatMarks(look, ready.filter((p) => p.format === look.label), !pareto)),
      pareto ? names(ready, middle) : null,
      Plot.dot(failed, { x: "x", frameAnchor: "bottom", symbol: "times", r: 5, stroke: "var(--bad)", strokeWidth: 1.6 }),
      Plot.tip(ready, Plot.pointer({ x: "px", y: "py", title: "tip", maxRadius: 30 })),
    ],
  });
  svg.addEventListener("click", () => { if (svg.value?.rows?.length) open(svg.value.rows); });
  return svg;
}
