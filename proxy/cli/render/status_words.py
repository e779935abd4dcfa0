"""Parts of the status that need more than a name and a unit, in words. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from slowtok.proxy.cli.render.console import number

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
}
UNMAPPED = {"no listener": "no process was seen to listen at its port"}
LEAST_WAIT_CORES = 0.05  # less is no wait worth a word; heuristic
_GIB = 2**30

Facts = Mapping[str, Any]


def engine_facts(engine: Facts) -> dict[str, Any]:
    """Return what is worth a word of an engine's settings."""
    idle = OF_GPUS if engine.get("gpu_layers") == 0 else ()
    kept = {name: value for name, value in worth_saying(engine).items() if name not in idle}
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
    """Say whether a model fits, and what to do where that costs speed."""
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
        yield f"{host['available_bytes'] / _GIB:.1f} GiB of RAM available"
    for name, what in (
        ("psi_cpu_some_ratio", "something waits for the CPU"),
        ("psi_io_full_ratio", "everything waits for the disk"),
        ("psi_memory_full_ratio", "everything waits for memory"),
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
        parts.append(f"all of them at {number(row['seen_median_tps'])}")
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
