// Engines and GPUs: what is there, what limits it, and what cannot be seen.

import { el, facts, fill, sized, table } from "./dom.js";
import { DASH, bandwidth, bytes, clock, count, millis, number, percent, seconds, words } from "./format.js";
import { renderFit } from "./fit.js";

// Facts of an engine whose field's name is no words, by that name.
const NAMES = {
  local: "runs on this machine",
  pid: "process",
  unmapped: "why its process is not known",
  through: "started by",
  slept: "has put its model away",
  context_tokens: "context of a slot",
  gpu_layers: "layers asked for on GPUs (-1: the engine decides)",
  kv_type_k: "type of the KV cache, keys",
  kv_type_v: "type of the KV cache, values",
  kv_on_gpu: "KV cache on the GPU",
  kv_cache_tokens: "room of the whole KV cache",
  gpu_indices: "GPUs that it uses",
  gpu_memory_ratio: "share of the GPU that it may fill",
  loaded_bytes: "model in memory",
  loaded_gpu_bytes: "of that on GPUs",
  cpu_moe_layers: "layers whose experts stay in RAM",
  cpu_offload_bytes: "weights kept in RAM",
  swa_full: "whole KV cache of sliding windows",
  checkpoints: "states kept to go back to",
  cache_block_tokens: "block of the prefix cache",
  batch_tokens: "batch",
  micro_batch_tokens: "micro-batch",
  eager: "without CUDA graphs",
  started_unix_s: "started",
  uptime_s: "runs for",
  template_habits: "what its chat template changes",
};

export function renderMachine(place, source) {
  const status = source.status;
  if (!status) return fill(place, el("h1", {}, "Engines and GPUs"), el("p", { class: "empty" }, "The proxy has not answered yet."));
  const opened = new Set([...place.querySelectorAll("details[open]")].map((details) => details.dataset.key));
  fill(
    place,
    el("h1", {}, "Engines and GPUs"),
    source.link === "offline" ? el("p", { class: "notice" }, "The proxy does not answer: this is how it was.") : null,
    el("ul", { class: "cards wide" }, status.engines.map((engine) => engineCard(engine, opened))),
    status.engines.length ? null : el("p", { class: "empty" }, "No engine was found yet; slowtok keeps looking."),
    el("h2", {}, "GPUs"),
    status.gpus.length ? el("ul", { class: "cards wide" }, status.gpus.map(gpuCard)) : el("p", { class: "empty" }, status.machine?.gpus_reason ?? "No GPU is visible."),
    el("h2", {}, "Host"),
    hostFacts(status),
    el("h2", {}, "Not visible"),
    hidden(status.not_visible),
    el("h2", {}, "slowtok itself"),
    ownFacts(status),
  );
}

function engineCard(engine, opened) {
  const key = engine.name ?? engine.url;
  const shown = ["name", "kind", "url", "version", "answers", "gone_since", "models", "loaded_models", "fit"];
  const rest = Object.entries(engine).filter(([name]) => !shown.includes(name)).map(([name, value]) => [NAMES[name] ?? words(name.replace(/_(s|bytes|tokens)$/, "")), written(name, value)]);
  return el(
    "li",
    { class: "card", dataset: { state: engine.answers ? "up" : "down" } },
    el("p", { class: "card-title" }, el("strong", {}, engine.name ?? engine.kind), el("span", { class: `pill ${engine.answers ? "normal" : "stuck"}` }, engine.answers ? "answers" : engine.gone_since ? "gone" : "does not answer")),
    engine.answers || !engine.gone_since ? null : el("p", {}, `It has not answered since ${clock(engine.gone_since)}. What stands below is how it was.`),
    facts([["Kind", engine.kind], ["Version", engine.version], ["Address", engine.url]]),
    engine.models?.length ? table(`Models of ${key}`, ["Model", "Weights", "Layers", "Quantisation"], engine.models.map((m) => [m.name ?? "?", bytes(m.file_bytes), count(m.layers), m.quantisation ?? DASH]), { stacks: true }) : el("p", { class: "muted" }, "No model is known yet."),
    renderFit(engine),
    rest.length ? el("details", { dataset: { key }, open: opened.has(key) }, el("summary", {}, "How it runs"), facts(rest)) : null,
  );
}

function gpuCard(gpu) {
  const now = gpu.now ?? {};
  const reasons = (now.reasons ?? []).filter((reason) => reason !== "gpu-idle").join(", ");
  return el(
    "li",
    { class: "card" },
    el("p", { class: "card-title" }, el("strong", {}, `${gpu.index}: ${gpu.name ?? "GPU"}`), el("span", { class: "muted" }, gpu.driver ? `driver ${gpu.driver}` : "")),
    vram(gpu),
    facts([
      ["Busy", now.busy_ratio === undefined ? null : percent(now.busy_ratio)],
      ["Temperature", now.temperature_c === undefined ? null : `${number(now.temperature_c)} °C${gpu.slowdown_temperature_c === undefined ? "" : `, slows down at ${number(gpu.slowdown_temperature_c)} °C`}`],
      ["Power", now.power_w === undefined ? null : `${number(now.power_w)} W of ${number(gpu.power_limit_w)} W`],
      ["Power limit by default", gpu.default_power_limit_w === undefined ? null : `${number(gpu.default_power_limit_w)} W, up to ${number(gpu.max_power_limit_w)} W`],
      ["Processor clock", now.sm_clock_mhz === undefined ? null : `${number(now.sm_clock_mhz)} of ${number(gpu.max_sm_clock_mhz)} MHz`],
      ["Memory clock", now.memory_clock_mhz === undefined ? null : `${number(now.memory_clock_mhz)} of ${number(gpu.max_memory_clock_mhz)} MHz`],
      ["Memory bandwidth", gpu.bandwidth_bytes_per_s === undefined ? null : `${bandwidth(gpu.bandwidth_bytes_per_s)} at its peak`],
      ["PCIe", gpu.max_pcie_generation === undefined ? null : `up to generation ${gpu.max_pcie_generation}, ${gpu.max_pcie_width ?? "?"} lanes`],
      ["Clocks held down by", reasons],
    ]),
  );
}

/** Whose the memory of a GPU is: a bar, and the same in words. */
function vram(gpu) {
  const held = gpu.vram;
  if (!held) return el("p", { class: "muted" }, gpu.total_bytes ? `VRAM ${bytes(gpu.total_bytes)}; how it is split is not visible` : "VRAM is not visible");
  const parts = [["server", held.server_bytes], ["others", held.others_bytes], ["unassigned", held.unassigned_bytes], ["hidden", held.hidden_bytes], ["free", held.free_bytes]].filter(([, size]) => size > 0);
  const named = parts.reduce((sum, [, size]) => sum + size, 0);
  const total = held.total_bytes || named;
  if (total - named > 0.005 * total) parts.push(["driver", total - named]);
  const names = (held.others ?? []).map((other) => `${other.name ?? `process ${other.pid}`} ${bytes(other.bytes)}`).join(", ");
  return el(
    "div",
    {},
    el("div", { class: "timeline vram", "aria-hidden": "true" }, parts.map(([name, size]) => sized(el("span", { class: `vram-${name}` }), { width: (100 * size) / total }))),
    el("p", {}, `VRAM ${bytes(total)}: `, parts.map(([name, size], i) => [el("span", { class: "keyed" }, el("span", { class: `swatch vram-${name}`, "aria-hidden": "true" }), `${name} ${bytes(size)}${i < parts.length - 1 ? "," : ""}`), " "])),
    names ? el("p", { class: "muted" }, `Others: ${names}`) : null,
  );
}

function hostFacts(status) {
  const host = status.host ?? {}, machine = status.machine ?? {};
  return facts([
    ["CPU", host.cpu_busy_cores === undefined ? null : `${number(host.cpu_busy_cores)} of ${number(host.cpu_cores)} cores busy`],
    ["RAM", machine.ram_bytes ? `${bytes(machine.ram_bytes)}${host.available_bytes === undefined ? "" : `, ${bytes(host.available_bytes)} available`}` : null],
    ["RAM bandwidth", machine.ram_bandwidth_bytes_per_s ? [bandwidth(machine.ram_bandwidth_bytes_per_s), machine.ram_bandwidth_how ?? (machine.ram_bandwidth_source === "given" ? "given in the settings" : machine.ram_bandwidth_source)].filter(Boolean).join(", ") : null],
    ["Power", machine.on_battery === true ? "on battery" : null],
    ["Power profile", machine.power_profile],
    ["CPU governor", machine.cpu_governor],
    ["System", machine.os],
  ]);
}

function hidden(facts_) {
  if (!facts_?.length) return el("p", { class: "muted" }, "Nothing is missing.");
  return table("What slowtok cannot see here", ["Fact", "Why", "How to make it visible"], facts_.map((h) => [h.fact, h.why ?? DASH, h.how_to_enable ?? DASH]), { stacks: true });
}

function ownFacts(status) {
  const { overhead = {}, counts = {} } = status;
  const failures = Object.entries(counts.failures ?? {}).map(([place, n]) => `${place}: ${n}`).join(", ");
  return facts([
    ["Version", status.version],
    ["Requests", count(counts.requests)],
    ["CPU", overhead.proxy ? percent(overhead.proxy.cpu_ratio) + " of a core" : null],
    ["Memory", overhead.proxy ? bytes(overhead.proxy.resident_bytes) : null],
    ["A diagnosis takes", overhead.diagnose_ms_per_request === null ? null : millis(overhead.diagnose_ms_per_request)],
    ["Failures in observing", failures || "none"],
  ]);
}

function written(name, value) {
  if (name.endsWith("_bytes")) return bytes(value);
  if (name.endsWith("_ratio")) return percent(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (name === "started_unix_s") return clock(value * 1000);
  if (name.endsWith("_tokens")) return `${count(value)} tokens`;
  if (typeof value === "number") return name.endsWith("_s") ? seconds(value) : name === "pid" ? String(value) : count(value);
  return Array.isArray(value) ? value.join(", ") || "none" : typeof value === "object" ? JSON.stringify(value) : String(value);
}
