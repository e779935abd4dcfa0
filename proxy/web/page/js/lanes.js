// Which lanes of a request's samples are drawn together.

import { changesAt } from "./changes.js";
import { el } from "./dom.js";
import { bandwidth, bytes, number, percent, rate, seconds } from "./format.js";
import { figure } from "./chart.js";

const LOW = 110; // of a lane below the rate, in pixels

const watts = (value) => `${number(value)} W`;
const megahertz = (value) => `${number(value)} MHz`;
const celsius = (value) => `${number(value)} °C`;
const cores = (value) => `${number(value)} cores`;

// `least` is the smallest change that is worth a word where the rate stepped. Heuristic.
const GPU = [
  { title: "Utilisation", least: 0.1, format: percent, most: 1, lanes: [["busy_ratio", "busy", "line-1"], ["dram_busy_ratio", "memory bandwidth", "line-2"]] },
  { title: "Power", least: 10, format: watts, brakes: true, lanes: [["power_w", "draw", "line-1"], ["power_limit_w", "limit", "line-3", true]] },
  { title: "Clocks", least: 50, format: megahertz, brakes: true, lanes: [["sm_clock_mhz", "processors", "line-1"], ["memory_clock_mhz", "memory", "line-2"]] },
  { title: "Temperature", least: 3, format: celsius, most: 90, lanes: [["temperature_c", "GPU", "line-1"], ["memory_temperature_c", "memory", "line-2"]] },
  { title: "VRAM", least: 2 ** 28, format: bytes, binary: true, lanes: [["used_bytes", "in use", "line-1"], ["total_bytes", "total", "line-3", true]] },
  { title: "PCIe", least: 1e8, format: bandwidth, lanes: [["pcie_rx_bytes_per_s", "into the GPU", "line-1"], ["pcie_tx_bytes_per_s", "out of it", "line-2"]] },
];

const HOST = [
  { title: "CPU", least: 0.5, format: cores, lanes: [["server_cpu_cores", "server", "line-1"], ["others_cpu_cores", "others", "line-2"], ["server_run_delay_cores", "server waits for a core", "line-4"], ["cpu_cores", "cores there are", "line-3", true]] },
  { title: "Server held back by its CPU quota", least: 0.1, format: percent, most: 1, lanes: [["server_throttled_ratio", "periods", "line-4"]] },
  { title: "Waiting (PSI)", least: 0.05, format: percent, most: 1, lanes: [["psi_io_full_ratio", "for the disk", "line-1"], ["psi_memory_full_ratio", "for memory", "line-2"]] },
  { title: "Server reads from disk", least: 1e7, format: bandwidth, lanes: [["server_read_bytes_per_s", "read", "line-1"]] },
  { title: "RAM available", least: 2 ** 29, format: bytes, binary: true, lanes: [["available_bytes", "available", "line-1"]] },
];

/** All charts of one request on one axis of time, one below the other. */
export function laneCharts(series, record) {
  const shared = { to_s: series.total_s, phases: series.phases, step_s: series.step?.at_s ?? null, sync: `request ${series.id}` };
  return [
    tokenRate(series, record, shared),
    stepped(series),
    series.gpus.map((gpu) => el("section", {}, el("h3", {}, nameOf(gpu)), group(GPU, gpu, shared))),
    series.host.at_s.length ? el("section", {}, el("h3", {}, "Host"), group(HOST, series.host, shared)) : el("p", { class: "empty" }, "No samples of the host."),
  ];
}

const nameOf = (gpu) => `GPU ${gpu.index}${gpu.name ? `: ${gpu.name}` : ""}`;

/** Where the rate stepped, and what changed there; that alone does not make it the cause. */
function stepped(series) {
  const { step } = series;
  if (!step) return null;
  const what = step.after_tps < step.before_tps ? "fell" : "rose";
  const changes = [
    ...series.gpus.flatMap((gpu) => changesAt(step.at_s, GPU, gpu, series).map((change) => `GPU ${gpu.index}: ${change}`)),
    ...changesAt(step.at_s, HOST, series.host, series).map((change) => `host: ${change}`),
  ];
  return el(
    "section",
    { class: "step" },
    el("p", {}, el("strong", {}, `After ${seconds(step.at_s)} the rate ${what} from ${rate(step.before_tps)} to ${rate(step.after_tps)}`), " (dashed line in all charts)."),
    changes.length ? [el("p", {}, "What changed there, the cause or not:"), el("ul", {}, changes.map((change) => el("li", {}, change)))] : el("p", { class: "muted" }, "Nothing that was sampled changed there."),
  );
}

function tokenRate(series, record, shared) {
  if (!series.tokens) return el("p", { class: "empty" }, "No token rate over time: the reply was not streamed, or too short.");
  const expected = record.expected ?? {};
  const low = expected.decode_low_tps, high = expected.decode_high_tps;
  return figure({
    ...shared,
    title: "Token rate",
    format: rate,
    at: series.tokens.at_s,
    lanes: [{ label: "rate", values: series.tokens.tps, colour: "line-1" }],
    band: low === undefined ? null : { low, high },
    marks: series.gpus.flatMap((gpu) => gpu.brakes ?? []),
  });
}

function group(kinds, holder, shared) {
  const drawn = kinds.filter((kind) => kind.lanes.some(([name]) => isWorthIt(holder.lanes[name], name)));
  return el("div", { class: "lanes" }, drawn.map((kind) => figure({
    ...shared,
    height: LOW,
    title: kind.title,
    format: kind.format,
    binary: kind.binary,
    most: kind.most ?? 0,
    at: holder.at_s,
    marks: kind.brakes ? holder.brakes : [],
    lanes: kind.lanes.map(([name, label, colour, dashed]) => ({ label, values: holder.lanes[name], colour, dashed })),
  })));
}

/** Say whether a lane tells anything: nothing but zeroes of what seldom happens does not. */
function isWorthIt(values, name) {
  if (!values) return false;
  const rare = /^(psi_|server_throttled|server_read)/.test(name);
  return !rare || values.some((value) => value > 0);
}
