"""The status for human eyes. Pure: `/slowtok/status` in, text out.

The status grows with what slowtok learns to see, and may come from another version. So facts are
shown by the unit that their name ends with, whatever they are; what is absent is left out, and
what has another shape than expected costs its own lines only.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from slowtok.detectors.case.finding import number
from slowtok.proxy.cli.render.console import plain
from slowtok.proxy.cli.render.units import GIB, MIB, counted

_DIGEST = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b")
_ACRONYMS = frozenset(
    {"cpu", "gpu", "gpus", "kv", "id", "ram", "vram", "pcie", "uuid", "ecc", "mig", "sm"}
)
_TROUBLE = ("restarts", "last_end", "on_sample_errors", "failed", "unreadable_lines")
MAX_DAYS = 7  # of each setup, the newest
MAX_LISTED = 8  # of models, setups and the like; --json has them all
Row = tuple[str, str | Text]
Facts = Mapping[str, Any]

STATES = {
    "ok": "fits",
    "note": "as it was asked for",
    "warn": "costs speed",
    "unknown": "whether it fits is not known",
}
OF_GPUS = ("kv_on_gpu", "split_mode", "main_gpu", "tensor_split")  # idle words where no layer is
NOT_WORTH_SAYING = {  # values that are the usual ones
    "local": True,
    "speculative": False,
    "slept": False,
    "unified_memory": False,
    "private_pids": False,
    "gpu_layers": -1,  # as many as fit
}
UNMAPPED = {"no listener": "no process was seen to listen at its port"}
LEAST_WAIT_CORES = 0.05  # less is no wait worth a word; heuristic


def _duration(time_s: float) -> str:
    for length_s, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if time_s >= 2 * length_s:
            return f"{time_s / length_s:.0f} {unit}"
    return f"{time_s:.3g} s" if time_s >= 1 else f"{time_s * 1000:.3g} ms"


_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (  # longer endings first
    ("_bytes_per_s", lambda v: f"{v / 1e9:.1f} GB/s"),
    ("_bytes", lambda v: f"{v / GIB:.1f} GiB" if v >= GIB else f"{v / MIB:.0f} MiB"),
    ("_per_s", lambda v: f"{v:,.4g} per s"),
    ("_tps", lambda v: f"{v:,.4g} tokens/s"),
    ("_ratio", lambda v: f"{100 * v:.3g} %"),
    ("_tokens", lambda v: f"{v:,.6g} tokens"),
    ("_mhz", lambda v: f"{v:,.0f} MHz"),
    ("_bits", lambda v: f"{v:g} bits"),
    ("_ms", lambda v: f"{v:.3g} ms"),
    ("_w", lambda v: f"{v:.0f} W"),
    ("_c", lambda v: f"{v:.0f} °C"),
    ("_j", lambda v: f"{v:,.0f} J"),
    ("_s", _duration),
)


def overview(status: Facts) -> Table:
    """Return the status as a table of two columns, what it is about and what is known."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=len("not visible"), style="bold")
    table.add_column(overflow="fold")
    for name, section in _SECTIONS.items():
        try:
            rows = list(section(status))
        except (AttributeError, KeyError, TypeError, ValueError):  # written by another version
            rows = [(name, Text("has a shape that is not known here; --json shows it", "dim"))]
        for title, words in rows:
            table.add_row(plain(title), Text(plain(words)) if isinstance(words, str) else words)
    return table


def fact(name: str, value: Any) -> str:
    """Return one fact in words, by the unit that its name ends with; empty where not known."""
    if value is None or value in ({}, [], ()):
        return ""
    if isinstance(value, dict):
        return f"{_words(name)}: {facts(value)}" if facts(value) else ""
    if isinstance(value, list):
        shown = [f"({facts(v)})" if isinstance(v, dict) else _bare(v) for v in value[:MAX_LISTED]]
        more = ", ..." if len(value) > MAX_LISTED else ""
        return f"{_words(name)} {', '.join(shown)}{more}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for ending, say in _UNITS:
            if f"_{name}".endswith(ending):  # a name may be its unit alone
                return f"{_words(f'_{name}'.removesuffix(ending))} {say(value)}".lstrip()
    plain_number = name.endswith("pid") or name == "index"
    return f"{_words(name)} {value if plain_number else _bare(value)}"


def facts(known: Facts, *, leave_out: tuple[str, ...] = ()) -> str:
    """Return all facts that are known, in one line."""
    said = (fact(name, value) for name, value in known.items() if name not in leave_out)
    return ", ".join(words for words in said if words)


def no_answer(engine: Facts) -> str:
    """Return the words for an engine that does not answer, with since when where it did before."""
    try:
        since = datetime.fromisoformat(str(engine["gone_since"])).astimezone()
    except (KeyError, ValueError):
        return "does not answer"
    return f"does not answer, gone since {since:%H:%M:%S}"


def kind_words(kind: str) -> str:
    """Return the kind of an engine; one that has never answered has none yet."""
    return "engine" if kind in ("", "unknown") else kind


def _setup(setup: Any) -> str:
    return setup_words(_bare(setup))


def _words(name: str) -> str:
    return " ".join(w.upper() if w in _ACRONYMS else w for w in name.split("_")).strip()


def _bare(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value) if isinstance(value, float) else f"{value:,}"
    return _DIGEST.sub(r"\1...", str(value))


def _head(status: Facts) -> Iterator[Row]:
    counts = status.get("counts") or {}
    version = status.get("version") or "(not installed)"
    said = f"{version} at {status.get('listen', '?')}"
    said += f", {counted(counts['requests'], 'request')}" if "requests" in counts else ""
    said += f", {counts['in_flight']:,} in flight" if "in_flight" in counts else ""
    yield "slowtok", said
    for name in ("log", "state_dir"):
        if status.get(name):
            yield _words(name), "standard output" if status[name] == "-" else str(status[name])


def _engines(status: Facts) -> Iterator[Row]:
    engines = status.get("engines") or []
    if not engines:
        yield "engine", f"none found yet; looked at {status.get('looked_at') or 'nothing'}"
    shown = ("name", "kind", "version", "url", "answers", "gone_since", "models", "fit")
    for engine in engines:
        kind = " ".join(str(engine[k]) for k in ("kind", "version") if engine.get(k))
        name, url = str(engine.get("name") or ""), str(engine.get("url", "?"))
        called = f"{name}: " if name not in url else ""
        words = Text(plain(f"{called}{kind_words(kind)} at {url}"))
        if engine.get("answers") is False:
            words.append(f", {no_answer(engine)}", "bold red")
        yield "engine", words
        if more := facts(engine_facts(engine), leave_out=shown):
            yield "", Text(plain(more), "dim")
        yield from _models(engine.get("models") or [])
        for fit in engine.get("fit") or []:
            yield "  fit", fit_words(fit)


def _models(models: list[Facts]) -> Iterator[Row]:
    for model in models[:MAX_LISTED]:
        words = Text(plain(str(model.get("name", "?"))))
        same = model.get("path") == model.get("name")
        if more := facts(model, leave_out=("name", "path") if same else ("name",)):
            words.append(plain(f"  {more}"), "dim")
        yield "  model", words
    if len(models) > MAX_LISTED:
        yield "", f"and {len(models) - MAX_LISTED} more; --json lists them"


def _gpus(status: Facts) -> Iterator[Row]:
    for gpu in status.get("gpus") or []:
        yield f"GPU {gpu.get('index', '?')}", str(gpu.get("name") or "name not known")
        if more := facts(gpu, leave_out=("index", "name", "absent")):
            yield "", Text(plain(more), "dim")
        for name, reason in (gpu.get("absent") or {}).items():
            yield "", Text(plain(f"does not tell {_words(name)}: {reason}"), "dim")


def _machine(status: Facts) -> Iterator[Row]:
    if said := facts(machine_facts(status.get("machine") or {}), leave_out=("gpus_reason",)):
        yield "machine", said
    if said := ", ".join(host_words(status.get("host") or {})):
        yield "now", said


def _learned(status: Facts) -> Iterator[Row]:
    setups = status.get("baselines")
    if setups is None:
        return
    if isinstance(setups, dict):
        yield "learned", facts(setups)
        return
    decodes = [setup for setup in setups if str(setup.get("setup")).startswith("decode")]
    requests = sum(setup.get("count", 0) for setup in decodes)
    yield "learned", f"{counted(len(setups), 'setup')}, {counted(requests, 'healthy request')}"
    for setup in setups[:MAX_LISTED]:
        words = f"{_setup(setup.get('setup', '?'))}: {learned_words(setup)}"
        yield "", Text(plain(words), "dim")
    if len(setups) > MAX_LISTED:
        yield "", f"and {len(setups) - MAX_LISTED} more; --json lists them"
    if shared := status.get("shared_baselines"):
        yield "", Text(plain(f"shared: {facts(shared)}"))


def _by_day(status: Facts) -> Iterator[Row]:
    """Yield how fast each setup was on each of its last days, one line a setup."""
    rows = status.get("baselines_by_day") or []
    setups = [(n, list(found)) for n, found in itertools.groupby(rows, lambda row: row["setup"])]
    for at, (setup, days) in enumerate(setups[:MAX_LISTED]):
        said = ", ".join(
            f"{str(day['day'])[5:]} {day['median_tps']:.4g}/s" for day in days[-MAX_DAYS:]
        )
        counts = sum(day["count"] for day in days[-MAX_DAYS:])
        words = Text(plain(f"{_setup(setup)}: {said}"))
        yield "by day" if not at else "", words.append(f" ({counted(counts, 'request')})", "dim")
    if len(setups) > MAX_LISTED:
        yield "", f"and {len(setups) - MAX_LISTED} more; --json lists them"


def _running(status: Facts) -> Iterator[Row]:
    """Yield what runs now in short; `slowtok top` shows it as it goes."""
    for entry in (status.get("running") or [])[:MAX_LISTED]:
        words = f"{entry.get('model') or '?'}  {entry.get('phase', '?')}"
        since_s = entry.get("since_s")
        yield "running", words if since_s is None else f"{words} for {_duration(since_s)}"


def _not_visible(status: Facts) -> Iterator[Row]:
    for hidden in status.get("not_visible") or []:
        ways = (hidden.get("why"), hidden.get("how_to_enable"))
        said = "; ".join(str(way) for way in ways if way)
        yield "not visible", Text(plain(f"{hidden.get('fact', '?')}: {said}"), "yellow")


def _own_cost(status: Facts) -> Iterator[Row]:
    title = "own cost"
    for name, value in (status.get("overhead") or {}).items():
        said = fact(name, value)
        if isinstance(value, dict):
            costs = facts(value)
            if name == "sampling":  # its troubles are among the failures
                costs = ", ".join(sampling_words(value, has_gpus=bool(status.get("gpus"))))
            said = f"{_words(name)}: {costs}" if costs else ""
        if said:
            yield title, said
            title = ""


def _workers(status: Facts) -> Iterator[Row]:
    for worker in status.get("workers") or []:
        yield "worker", facts(worker)


def _failures(status: Facts) -> Iterator[Row]:
    counts = dict(status.get("counts") or {})
    sampling = (status.get("overhead") or {}).get("sampling") or {}
    failed = {**(counts.pop("failures", None) or {}), **counts}
    failed |= {f"sampling_{name}": sampling.get(name) for name in _TROUBLE}
    said = facts({k: v for k, v in failed.items() if v and k not in ("requests", "in_flight")})
    if sampling.get("alive") is False:
        said = ", ".join(filter(None, ("the sampling process does not run", said)))
    yield "failures", Text(plain(said), "bold red") if said else Text("none", "green")


def _rest(status: Facts) -> Iterator[Row]:
    """Yield what this version has no section for."""
    for name, value in status.items():
        if name not in _SHOWN and (said := fact(name, value)):
            yield "also", said


_SHOWN = (
    *("version", "listen", "log", "state_dir", "looked_at", "counts", "engines", "gpus"),
    *("machine", "host", "running", "baselines", "baselines_by_day", "shared_baselines"),
    *("not_visible", "overhead", "workers"),
)
_SECTIONS: Mapping[str, Callable[[Facts], Iterator[Row]]] = {
    "slowtok": _head,
    "engine": _engines,
    "GPU": _gpus,
    "machine": _machine,
    "learned": _learned,
    "by day": _by_day,
    "running": _running,
    "not visible": _not_visible,
    "own cost": _own_cost,
    "worker": _workers,
    "failures": _failures,
    "also": _rest,
}


def machine_facts(machine: Facts) -> dict[str, Any]:
    """Return what is worth a word of the machine, with one word on where a bandwidth is from."""
    kept = worth_saying(machine)
    source, how = kept.pop("ram_bandwidth_source", None), kept.pop("ram_bandwidth_how", None)
    return {**kept, "ram_bandwidth": how or source}


def engine_facts(engine: Facts) -> dict[str, Any]:
    """Return what is worth a word of an engine's settings."""
    idle = OF_GPUS if engine.get("gpu_layers") == 0 else ()
    kept = {name: value for name, value in worth_saying(engine).items() if name not in idle}
    if "uptime_s" in kept:
        kept.pop("started_unix_s", None)  # the same in other words
    k, v = kept.pop("kv_type_k", None), kept.pop("kv_type_v", None)
    if types := dict.fromkeys(str(each) for each in (k, v) if each):
        kept["kv_cache_type"] = "/".join(types)
    if why := kept.pop("unmapped", None):
        kept["process_not_known"] = f"({UNMAPPED.get(str(why), why)})"
    return kept


def worth_saying(known: Facts) -> dict[str, Any]:
    """Leave out what is as it usually is."""
    return {
        name: value
        for name, value in known.items()
        if name not in NOT_WORTH_SAYING or value is not NOT_WORTH_SAYING[name]
    }


def fit_words(fit: Facts) -> str:
    """Return the line on whether a model fits, and what to do where that costs speed."""
    model, said = str(fit.get("model", "?")), str(fit.get("said") or "")
    word = STATES.get(str(fit.get("state")), str(fit.get("state")))
    parts = [f"{model} {word}" if fit.get("state") == "ok" else f"{model}: {word}"]
    if said:
        parts.append(said.removeprefix(f"{model}: "))
    if fit.get("advice"):
        parts.append(f"what to do: {fit['advice']}")
    return "; ".join(parts)


def host_words(host: Facts) -> Iterator[str]:
    """Yield what the machine does now."""
    if "cpu_busy_cores" in host:
        of = f" of {host['cpu_cores']}" if "cpu_cores" in host else ""
        yield f"{number(host['cpu_busy_cores'])}{of} cores busy"
    if "server_cpu_cores" in host:
        yield f"the engine uses {number(host['server_cpu_cores'])}"
    if host.get("server_run_delay_cores", 0) >= LEAST_WAIT_CORES:
        yield f"its threads wait for {number(host['server_run_delay_cores'])} more"
    if host.get("server_throttled_ratio"):
        yield f"its CPU quota holds it back {_percent(host['server_throttled_ratio'])} of the time"
    if host.get("cpu_mhz"):
        yield f"CPU at {host['cpu_mhz']:,.0f} MHz"
    if "available_bytes" in host:
        yield f"{host['available_bytes'] / GIB:.1f} GiB of RAM available"
    for name, what in (
        ("psi_cpu_some_ratio", "some process waits for the CPU"),
        ("psi_io_full_ratio", "all processes wait for the disk"),
        ("psi_memory_full_ratio", "all processes wait for memory"),
    ):
        if host.get(name):
            yield f"{what} {_percent(host[name])} of the time"


def sampling_words(sampling: Facts, *, has_gpus: bool) -> Iterator[str]:
    """Yield what sampling costs, and what went wrong there, if anything did."""
    if sampling.get("cpu_ratio") is not None:
        yield f"CPU {_percent(sampling['cpu_ratio'])}"
    if sampling.get("tick_p50_s") is not None:
        most = sampling.get("tick_max_s")
        at_most = "" if most is None else f", {1000 * most:.3g} ms at most"
        yield f"a sample takes {1000 * sampling['tick_p50_s']:.3g} ms{at_most}"
    gpu_troubles = (
        ("gpu_errors", "failed readings of GPUs"),
        ("gpu_samples_stalled", "GPU samples that stood still"),
        ("gpu_hung", "GPU drivers that hang"),
    )
    for name, what in (("missed_ticks", "late samples"), *(gpu_troubles if has_gpus else ())):
        if sampling.get(name):
            yield f"{what}: {sampling[name]:,}"


def learned_words(row: Facts) -> str:
    """Return what was learned of a setup (`proxy/history/rates.py`)."""
    parts = [f"{row.get('count', 0):,} of {row.get('seen', row.get('count', 0)):,} healthy"]
    if row.get("median_tps") is not None:
        parts[0] += f" at {number(row['median_tps'])} tokens/s"
    if row.get("of_expected_ratio") is not None:
        parts.append(f"{_percent(row['of_expected_ratio'])} of what was expected")
    if row.get("seen_median_tps") is not None and row.get("seen") != row.get("count"):
        parts.append(f"all of them at {number(row['seen_median_tps'])} tokens/s")
    if row.get("drift_ratio") is not None:
        parts.append(f"the newest day is at {_percent(row['drift_ratio'])} of the weeks before")
    return ", ".join(parts)


def setup_words(setup: str) -> str:
    """Return the text of a setup (`proxy/history/keys.py`) in words."""
    return ", ".join(_setup_part(part) for part in setup.split(" | "))


def _setup_part(part: str) -> str:
    name, _, value = part.partition(" ")
    range_ = value.replace("-", " to ")
    if name in ("ctx", "prompt") and value:
        what = "context" if name == "ctx" else "prompt"
        return f"{what} not known" if value == "?" else f"{range_} tokens of {what}"
    if name == "kv" and value:
        return f"KV cache {value}"
    if part.replace("-", "").isdecimal() and part[:1].isdecimal() and len(part) < 8:
        return f"{part.replace('-', ' to ')} requests at once"
    said = {"cpu": "CPU", "alone": "one request at a time", "speculative": "speculative decoding"}
    return said.get(part, part)


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.3g} %"
