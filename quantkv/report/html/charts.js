// Plots: every function takes what it draws and returns an element; nothing here keeps state.

const SIDE_STEP = 3; // pixels between formats of one context, so that bars of equal values stay visible
const WIDE_STEP = 9; // the same for shares, most of which are equal
const MARKER = 1.35; // marker radius in the page for each point of its size in the printed figures

/** The marker of a format as d3 and Plot draw symbols: `size` is an area. */
function symbolOf(look) {
  if (look.outline === null) return d3.symbolCircle;
  const outline = d3.line().curve(d3.curveLinearClosed);
  return {
    draw(context, size) {
      const radius = 1.25 * Math.sqrt(size / Math.PI);
      outline.context(context)(look.outline.map(([x, y]) => [radius * x, radius * y]));
    },
  };
}

/** A small drawing of the marker for the legend and the summary. */
function markerIcon(look) {
  const svg = d3.create("svg:svg").attr("width", 14).attr("height", 14).attr("viewBox", "-7 -7 14 14").attr("aria-hidden", "true");
  svg.append("path").attr("d", d3.symbol(symbolOf(look), 78)()).attr("fill", look.color);
  return svg.node();
}

/** Ticks of a log axis: 1, 2, 5 over a short span, powers of ten over a long one, about eight at most. */
function logTicks([low, high]) {
  const leading = Math.log10(high / low) < 2.2 ? "125" : "1";
  return d3.scaleLog([low, high], [0, 1]).ticks(8).filter((tick) => leading.includes(tick.toExponential()[0]));
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

/** Points with the place they are drawn at: within the axis, and where `place` says for their format. */
function placed(points, formats, [bottom], place) {
  return points.map((p) => {
    const at = formats.findIndex((look) => look.label === p.format);
    const inside = (value) => (value === null ? null : Math.max(value, bottom));
    return { ...p, px: place(p.x, at, formats.length), py: inside(p.y), plow: inside(p.low), phigh: inside(p.high) };
  });
}

/** The contexts of a chart; bits against quality has none of its own. */
function contextsOf(chart) {
  if (chart.name === "pareto") return [];
  return d3.sort(new Set([...chart.points, ...chart.failed].map((p) => p.x)));
}

/** Where a mark stands: at its bits, at its format where there is one context, else beside its context. */
function placing(chart, contexts, count, width) {
  if (chart.name === "pareto") return (x) => x;
  if (contexts.length === 1) return (x, at) => at;
  if (chart.name === "memory") return (x) => x;
  const octaves = Math.log2(contexts.at(-1) / contexts[0]) + 0.6;
  const nearest = d3.min(d3.pairs(contexts), ([one, next]) => Math.log2(next / one));
  const room = (0.5 * nearest * (width - 90)) / octaves;
  const apart = chart.scale === "share" ? Math.min(WIDE_STEP, room / count) : Math.min(SIDE_STEP, 40 / count);
  return (x, at) => x * 2 ** ((at - (count - 1) / 2) * ((apart * octaves) / (width - 90)));
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

function shortened(label) {
  return label.length > 16 ? `${label.slice(0, 15)}…` : label;
}

function axes(chart, contexts, formats, range, width) {
  const log = chart.scale === "log" ? { type: "log", ticks: logTicks(range), tickFormat: tickText } : { ticks: 6 };
  const y = { ...log, domain: range, grid: true, tickSize: 3, label: `↑ ${chart.y}` };
  if (chart.name === "pareto") {
    return { x: { label: `${chart.x} →`, nice: true, ticks: Math.round(width / 70), tickFormat: (bits) => String(Number(bits.toFixed(2))), inset: 18, labelAnchor: "center" }, y };
  }
  if (contexts.length === 1) {
    const ticks = d3.range(formats.length);
    return { x: { domain: [-0.6, formats.length - 0.4], ticks, tickFormat: (at) => shortened(formats[at].label), tickRotate: -35, label: null }, y };
  }
  const room = 2 ** Math.max(0.3, 0.07 * Math.log2(contexts.at(-1) / contexts[0]));
  const domain = [contexts[0] / room, contexts.at(-1) * room];
  return { x: { type: "log", base: 2, domain, ticks: contexts, tickFormat: String, label: `${chart.x} →`, labelAnchor: "center" }, y };
}

// small steps: a name that stands a little higher or lower still belongs to its own mark
const SIDES = d3.range(0, 10).flatMap((step) => [-3 * step, 3 * step]).flatMap((down) => [[9, down], [-9, down]]);
const FAR = 10; // pixels above or below its point from which on a name needs a line to it
const LETTER = 6.8, LINE = 12; // pixels that a letter and a line of a name take

/** What a name covers that stands `dx`, `dy` from the point at `x`, `y`. */
function nameBox(name, x, y, [dx, dy]) {
  const wide = LETTER * name.length;
  const left = dx > 0 ? x + dx : x + dx - wide;
  return { left, right: left + wide, top: y + dy - LINE / 2, bottom: y + dy + LINE / 2 };
}

function meet(one, other) {
  return one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
}

/** Names beside the points, from the right to the left, each on the first side where it covers no mark and no other
    name; Plot's own dodge moves along one axis and knows no widths. */
function names(points, plot, width) {
  const [x, y] = ["x", "y"].map((name) => plot.scale(name).apply);
  const taken = points.map((p) => ({ left: x(p.px) - 4, right: x(p.px) + 4, top: y(p.py) - 4, bottom: y(p.py) + 4 }));
  const free = (box) => box.left > 50 && box.right < width && !taken.some((other) => meet(box, other));
  return d3.sort(points, (p) => -p.px).map((p) => {
    const at = SIDES.find((side) => free(nameBox(p.format, x(p.px), y(p.py), side))) ?? SIDES[0];
    taken.push(nameBox(p.format, x(p.px), y(p.py), at));
    const anchor = at[0] > 0 ? "start" : "end";
    const link = [[p.px, p.py], [plot.scale("x").invert(x(p.px) + at[0]), plot.scale("y").invert(y(p.py) + at[1])]];
    return [
      Math.abs(at[1]) > FAR ? Plot.line(link, { stroke: "currentColor", strokeOpacity: 0.5, strokeWidth: 0.8 }) : null,
      Plot.text([p], { x: "px", y: "py", text: "format", textAnchor: anchor, dx: at[0], dy: at[1], fill: "currentColor", stroke: "var(--card)", strokeWidth: 3 }),
    ];
  });
}

/** The yardsticks: a line along contexts, or across where there is one context. */
function guideMarks(chart, contexts) {
  const look = { stroke: "currentColor", strokeDasharray: "1.5 3", y: "y" };
  return chart.guides.map((guide) => (contexts.length === 1 ? Plot.ruleY(guide.points, look) : Plot.line(guide.points, { ...look, x: "x" })));
}

/** One chart of a study as an SVG; `shown` are the looks of the formats that are not hidden. */
function drawChart(chart, study, shown, context, width, open) {
  const labels = new Set(shown.map((look) => look.label));
  const pareto = chart.name === "pareto";
  const points = chart.points.filter((p) => labels.has(p.format) && (!pareto || p.context === context));
  const range = extent(chart, points);
  const failed = chart.failed.filter((p) => labels.has(p.format));
  const contexts = contextsOf(chart);
  const drawnFormats = study.formats.filter((look) => [...points, ...failed].some((p) => p.format === look.label));
  const place = placing(chart, contexts, drawnFormats.length, width);
  const ready = placed(points, drawnFormats, range, place);
  const frame = {
    width, height: Math.max(270, Math.min(360, 0.62 * width)), ariaLabel: `${chart.title}: ${chart.y}`,
    marginLeft: 52, marginRight: chart.bounds.length ? 54 : 24, marginTop: 30, marginBottom: contexts.length === 1 ? 76 : 40,
    ...axes(chart, contexts, drawnFormats, range, width),
  };
  const bare = pareto && ready.length ? Plot.plot({ ...frame, marks: [Plot.dot(ready, { x: "px", y: "py" })] }) : null;
  const svg = Plot.plot({
    ...frame,
    marks: [
      boundMarks(chart, range),
      guideMarks(chart, contexts),
      pareto ? Plot.line(frontier(ready), { x: "px", y: "py", stroke: "currentColor", strokeOpacity: 0.4, strokeDasharray: "5 4" }) : null,
      shown.map((look) => formatMarks(look, ready.filter((p) => p.format === look.label), !pareto)),
      bare ? names(ready, bare, width - frame.marginRight) : null,
      Plot.dot(placed(failed, drawnFormats, range, place), { x: "px", frameAnchor: "bottom", symbol: "times", r: 5, stroke: "var(--bad)", strokeWidth: 1.6 }),
      Plot.tip(ready, Plot.pointer({ x: "px", y: "py", title: "tip", maxRadius: 30 })),
    ],
  });
  svg.addEventListener("click", () => { if (svg.value?.rows?.length) open(svg.value.rows); });
  return svg;
}
