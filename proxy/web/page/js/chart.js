// One chart: lanes over seconds, with a band, phases and marks behind them. uPlot does the drawing.

import { el } from "./dom.js";
import { median, number } from "./format.js";

const HEIGHT = 150;
const GUTTER = 78; // of the y axis, the same for all charts: their times are above each other
const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const watched = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (contentRect.width > 0) target.plot?.setSize({ width: contentRect.width, height: target.plot.height });
  }
});

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Take charts out of a place that is about to be emptied. */
export function dropCharts(place) {
  for (const target of place.querySelectorAll(".plot")) {
    watched.unobserve(target);
    target.plot?.destroy();
    target.plot = null;
  }
}

/**
 * A figure with a chart. `lanes` are { label, values, colour, dashed, steps, points }; `format` writes a value
 * with its unit; `most` is the least top of the scale; `band` is { low, high }; `marks` are
 * { from_s, to_s }; `phases` those of the samples, `step_s` where the rate stepped. `dates` says that `at` are days, `binary` that bytes
 * are counted.
 */
export function figure({ title, at, lanes, to_s, format = number, most = 0, band = null, marks = [], phases = [], step_s = null, sync = null, height = HEIGHT, dates = false, binary = false }) {
  const drawn = lanes.filter((lane) => lane.values?.some((value) => value !== null && value !== undefined));
  const said = summary(drawn, format, marks, band);
  const plot = el("div", { class: "plot", role: "img", "aria-label": `${title}. ${said}` });
  const made = el("figure", {}, el("figcaption", {}, el("strong", {}, title), " ", el("span", { class: "muted" }, said)), plot);
  // Its width is known once it is on the page.
  requestAnimationFrame(() => {
    if (!plot.isConnected) return;
    plot.plot = new uPlot(options(), [at, ...drawn.map((lane) => lane.values)], plot);
    plot.querySelector(".u-wrap")?.setAttribute("aria-hidden", "true");
    watched.observe(plot);
  });
  return made;

  function options() {
    return {
      width: plot.clientWidth || 300,
      height,
      padding: [10, 24, 0, 0],
      cursor: { sync: sync ? { key: sync, setSeries: false } : undefined, drag: { x: false, y: false }, y: false },
      scales: { x: xScale(dates, to_s), y: { range: (_plot, _low, high) => [0, 1.08 * Math.max(high ?? 0, most, band?.high ?? 0) || 1] } },
      axes: [xAxis(dates), yAxis(format, binary)],
      series: [{ label: dates ? "day" : "time", value: (_plot, value) => xText(value, dates) }, ...drawn.map((lane) => series(lane, format))],
      hooks: { drawClear: [(plotted) => behind(plotted, { band, marks, phases })], draw: [(plotted) => stepLine(plotted, step_s)] },
    };
  }
}

function series(lane, format) {
  return {
    label: lane.label,
    stroke: colour(lane.colour),
    width: 1.5,
    dash: lane.dashed ? [5, 4] : undefined,
    spanGaps: true,
    points: { show: Boolean(lane.points) || lane.values.length < 3, size: 6 },
    paths: lane.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
    value: (_plot, value) => (value === null || value === undefined ? "" : format(value)), // nothing is pointed at
  };
}

function xScale(dates, to_s) {
  return dates ? { time: true } : { time: false, range: () => [0, to_s] };
}

function xAxis(dates) {
  const axis = { stroke: colour("muted"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, size: 28, font: "12px system-ui, sans-serif" };
  if (dates) return { ...axis, values: (_plot, days) => days.map((day) => xText(day, true)), incrs: [86400, 2 * 86400, 7 * 86400, 28 * 86400], space: 60 };
  return { ...axis, values: (_plot, times) => times.map((time) => `${number(time)} s`) };
}

function yAxis(format, binary) {
  return {
    stroke: colour("muted"),
    grid: { stroke: colour("grid"), width: 1 },
    ticks: { show: false },
    size: GUTTER,
    space: 26,
    incrs: binary ? BINARY_STEPS : undefined,
    font: "12px system-ui, sans-serif",
    values: (_plot, values) => values.map((value) => format(value)),
  };
}

function xText(value, dates) {
  if (value === null || value === undefined) return "";
  return dates ? new Date(value * 1000).toISOString().slice(5, 10) : `${number(value)} s`;
}

/** Paint what lies behind the lanes: the band, stretches with a mark, and the phases on top. */
function behind(plotted, { band, marks, phases }) {
  const { ctx, bbox } = plotted;
  const x = (value) => Math.min(Math.max(plotted.valToPos(value, "x", true), bbox.left), bbox.left + bbox.width);
  const y = (value) => plotted.valToPos(value, "y", true);
  ctx.save();
  if (band) {
    ctx.fillStyle = colour("band");
    ctx.fillRect(bbox.left, y(band.high), bbox.width, y(band.low) - y(band.high));
  }
  for (const mark of marks) {
    ctx.fillStyle = colour("mark");
    ctx.fillRect(x(mark.from_s), bbox.top, Math.max(x(mark.to_s) - x(mark.from_s), 2), bbox.height);
  }
  for (const { phase, from_s, to_s } of phases) {
    ctx.fillStyle = colour(`phase-${phase}`);
    ctx.fillRect(x(from_s), bbox.top - 6 * devicePixelRatio, Math.max(x(to_s) - x(from_s), 1), 4 * devicePixelRatio);
  }
  ctx.restore();
}

/** Where the rate stepped: a line across, in front of the lanes. */
function stepLine(plotted, step_s) {
  if (step_s === null) return;
  const { ctx, bbox } = plotted;
  const x = Math.round(plotted.valToPos(step_s, "x", true));
  ctx.save();
  ctx.strokeStyle = colour("ink");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

/** The chart in words. */
function summary(lanes, format, marks, band) {
  const parts = lanes.map((lane) => {
    const known = lane.values.filter((value) => value !== null && value !== undefined);
    const low = Math.min(...known), high = Math.max(...known);
    if (low === high) return `${lane.label} ${format(low)}`;
    return `${lane.label} median ${format(median(known))}, ${format(low)} to ${format(high)}`;
  });
  if (band) parts.push(`expected ${format(band.low)} to ${format(band.high)}`);
  const reasons = [...new Set(marks.map((mark) => mark.reason))];
  if (reasons.length) parts.push(`clocks held down by ${reasons.join(", ")} (shaded)`);
  return `${parts.join("; ")}.`;
}
