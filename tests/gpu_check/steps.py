"""The steps of the check, in their order; each returns what it found."""

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pynvml
from bench.processes import spent_s
from gguf import GGUFReader

from fakes.load import busy_processes
from gpu_check.stage import WARM_UP_TOKENS, Check, Skip, decoding

Found = dict[str, Any]

LEFT_BYTES = 500 << 20
MOST_CPU_RATIO = 0.01
"""Of one core, for slowtok's sampling process."""
POWER_RATIO = 0.7
"""Of what decode draws, for the limit that is to slow it."""
SHORT_TOKENS = 16


def readings(check: Check) -> Found:
    """Hold slowtok's readings against nvidia-smi's, before anything runs."""
    try:
        return check.gpu.compared()
    except (OSError, subprocess.SubprocessError) as error:
        raise Skip(f"nvidia-smi: {error}") from error


def idle(check: Check) -> Found:
    """Read what an idle GPU says, and what else this machine does."""
    with check.gpu.watched() as lines:
        busy_ratio = psutil.cpu_percent(check.seconds) / 100
    return {"gpu": lines, "busy_cores": round(busy_ratio * (os.cpu_count() or 1), 1)}


def model_load(check: Check) -> Found:
    """Read what the GPU says while the engine loads the model, and the first tokens come."""
    with check.gpu.watched() as lines:
        check.start()
        text = check.text(64, "weather")
        found = check.ask(
            check.main, "weather", planted=["kernel-compile"], prompt=64, tokens=WARM_UP_TOKENS
        )
    tokens = found["case"]["timeline"]["tokens"]["prompt"] if found["case"] else None
    check.tokens_per_char = tokens / len(text) if tokens else check.tokens_per_char
    check.decode_tps = found["decode_tps"]
    return {**found, "gpu": lines}


def cost_idle(check: Check) -> Found:
    """Measure what sampling costs while no request is there."""
    return _cost(check, check.seconds)


def cost_under_load(check: Check) -> Found:
    """Measure what sampling costs while a request is there, and compare the readings again."""
    with decoding(check.main.url, tokens=check.tokens):
        found = _cost(check, 2 * check.seconds)  # what its budget lets pass at once counts less
        with contextlib.suppress(Skip):
            found |= readings(check)
        return found


def _cost(check: Check, seconds: float) -> Found:
    sampling = check.main.get("/slowtok/status")["overhead"]["sampling"]
    process = psutil.Process(sampling["pid"])
    before_s, begun_s = spent_s([process]), time.monotonic()
    time.sleep(seconds)
    ratio = (spent_s([process]) - before_s) / (time.monotonic() - begun_s)
    return {
        "sampling_cpu_ratio": round(ratio, 5),
        "within": ratio < MOST_CPU_RATIO,
        "slowed": check.main.get("/slowtok/status")["overhead"]["sampling"].get("slowed"),
        "calls": check.gpu.costs(check.seconds),
    }


def decode(check: Check) -> Found:
    """Decode with nothing planted: the rate that others are held against."""
    found = check.ask(check.main, "harbour")
    check.decode_tps = found["decode_tps"] or check.decode_tps
    samples = found["case"]["gpu"] if found["case"] else ()
    check.power_w = [line["power_w"] for line in samples if line.get("power_w")]
    return found


def prefill(check: Check) -> Found:
    """Read a prompt of half the context."""
    return check.ask(check.main, "river", prompt=check.context_tokens // 2, tokens=SHORT_TOKENS)


def long_context(check: Check) -> Found:
    """Decode behind a prompt of two thirds of the context."""
    return check.ask(check.main, "lake", prompt=check.context_tokens * 2 // 3)


def competitor(check: Check) -> Found:
    """Decode beside another engine on the same GPU."""
    main = check.main
    with check.running(check.gpu_layers) as other, decoding(other.url, tokens=check.tokens):
        return check.ask(main, "island", planted=["gpu-shared"])


def memory_nearly_full(check: Check) -> Found:
    """Decode while another program holds what is left of the memory, but 500 MiB."""
    main = check.main
    with check.memory_held(LEFT_BYTES):
        return check.ask(main, "coast", planted=["vram-spill", "vram-held-by-others"])


def power_limit(check: Check) -> Found:
    """Decode below the power that it draws, where anybody may set the limit."""
    main = check.main
    with power_limited(check.gpu.index, check.power_w):
        return check.ask(main, "glacier", planted=["power-cap"])


@contextlib.contextmanager
def power_limited(index: int, drawn_w: Sequence[float]) -> Iterator[None]:
    """Limit a GPU to less than it drew, and set the limit back whatever happens."""
    if os.geteuid() == 0:
        raise Skip("only tried where anybody may set it, and this is root")
    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        limit_mw = pynvml.nvmlDeviceGetPowerManagementLimit(gpu)
        least_mw, _ = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu, limit_mw)  # as it is: only to ask
    except pynvml.NVMLError as error:
        raise Skip(f"the limit may not be set: {error}") from error
    if not drawn_w:
        raise Skip("what decode draws is not known")
    wanted_mw = max(least_mw, int(1000 * POWER_RATIO * statistics.median(drawn_w)))
    try:
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu, wanted_mw)
        yield
    finally:
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu, limit_mw)


def cpu_contention(check: Check) -> Found:
    """Decode while other processes want all cores."""
    main = check.main
    with busy_processes(2 * len(os.sched_getaffinity(0))):
        return check.ask(main, "desert", planted=["host-contention"])


def queue(check: Check) -> Found:
    """Wait behind another request for the only slot."""
    with decoding(check.main.url, tokens=check.tokens):
        return check.ask(check.main, "valley", planted=["queued"], tokens=SHORT_TOKENS)


def partial_offload(check: Check) -> Found:
    """Decode with half of the layers on the CPU."""
    model = _model(check)
    fields = GGUFReader(model).fields
    layers = next(int(f.contents()) for n, f in fields.items() if n.endswith(".block_count"))
    with check.serving(layers // 2) as (_, proxy):
        return check.ask(proxy, "prairie", planted=["partial-offload"])


def memory_held_at_load(check: Check) -> Found:
    """Start the engine where another program left too little memory for all layers."""
    leave_bytes = max(LEFT_BYTES, _model(check).stat().st_size // 2)
    with check.memory_held(leave_bytes), check.serving(None) as (_, proxy):
        return check.ask(proxy, "plateau", planted=["vram-held-by-others"])


def _model(check: Check) -> Path:
    """Return the model, once the GPU is free for another engine."""
    if check.model is None:
        raise Skip("PyTorch's load has no layers")
    check.stop()
    return check.model


STEPS: dict[str, Callable[[Check], Found]] = {
    step.__name__.replace("_", "-"): step
    for step in (
        readings,
        idle,
        model_load,
        cost_idle,
        decode,
        prefill,
        long_context,
        cost_under_load,
        competitor,
        memory_nearly_full,
        power_limit,
        cpu_contention,
        queue,
        partial_offload,
        memory_held_at_load,
    )
}
NEED_ENGINE = [*STEPS][[*STEPS].index("model-load") :]
