"""There is a GPU, but the engine computes on the CPU.

Signal:
During decode the server holds no memory on the GPU that could be the model, the GPU idles or works
for others, and two or more of the server's CPU threads are busy for at least two seconds. Or the
GPU's driver does not answer at all: then an engine that started since then has no GPU. An engine
that started before may still have it, so its busy threads decide.

Not to be confused with:
- An engine that was started without a GPU (`--n-gpu-layers 0`) does what it was told, and one on
  another machine does not use this GPU.
- `partial-offload`: a part of the model is on the GPU, which may idle nearly as much.
- `model-load`: the model is not there yet.
- `model-too-big`, `context-oversized`, `vram-held-by-others`: these are the reasons why nothing of
  the model went to the GPU. Where slowtok names one of them, `cpu-fallback` is the symptom.
- `ollama ps` proves nothing: old versions show 100 % GPU on the CPU. Where the driver says that the
  server holds the model on the GPU, the driver is right.
- vLLM's processes look busy because they spin while they wait for the GPU.

Remedy:
Use a build of the engine with GPU support, and a driver that it accepts. Let the container see the
GPU (NVIDIA: `--gpus all`), and set no variable that hides it (CUDA_VISIBLE_DEVICES). After an
update of the driver, restart the machine.

Sources:
- ollama/ollama#8623 (CPU at 600 %, graphics memory empty, shown as 100 % GPU), #7597, #11882,
  #15918 (driver and library of different versions).
- NVIDIA/nvidia-container-toolkit#48 (a container loses its GPU after hours).
"""

from slowtok.detectors.analysis.gpu.gpu_window import by_gpu, median, without_first_second
from slowtok.detectors.analysis.host_window import (
    CPU_DECODES_CORES,
    decode_s,
    decode_tps,
    mean,
    seconds,
)
from slowtok.detectors.analysis.placement.remedies import engine_name, use_the_gpu
from slowtok.detectors.analysis.placement.where import holds_some, serving_gpus, shares_memory
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import SPINNING_PROCESSES
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need

TITLE = "Engine runs on the CPU, not on the GPU"
TRAITS = Traits(requires="gpu-use", since_load=True)

MAX_BUSY_RATIO = 0.05
MAX_SHARED_BUSY_RATIO = 0.15
"""Heuristic: a desktop alone keeps a GPU this busy, and more of one that shares
the machine's memory."""

MIN_BUSY_THREADS = 2
MIN_BUSY_S = 2.0
"""Heuristic: one busy thread also waits for a GPU that way."""

RESTART = "Restart the machine, so that the GPU's driver and its library have the same version."

SEEN_CONFIDENCE = 0.95
"""The driver or the engine says that it holds nothing there, and CPU and GPU agree."""

GUESSED_CONFIDENCE = 0.75
"""A GPU without memory of its own shows only that it idles while the CPU works, a driver that is
away only that: with what the CPU does these are two gauges."""


def detect(case: Case) -> Finding | None:
    """Fire when the CPU decodes beside a GPU that nobody asked it to leave alone."""
    if not case.device.gpus or case.server.gpu_layers == 0 or case.server.local is False:
        return None
    is_away, uses_none, busy_ratio = _is_driver_away(case), _says_none(case), _busiest(case)
    if is_away and _has_reasons_for_threads(case):
        return None
    if not uses_none and not is_away:
        need(case.gpu_during("decode") or None, "GPU samples during decode")
        if need(busy_ratio, "GPU utilisation") >= _most_busy(case):
            return None
    threads = _busy_threads(case)
    if threads is None or (not uses_none and not is_away and holds_some(case)):
        return None
    return _finding(case, busy_ratio, threads)


def _is_driver_away(case: Case) -> bool:
    """Return True if the driver tells why it says nothing of any GPU."""
    return case.device.gpus_reason is not None and not case.gpu


def _has_reasons_for_threads(case: Case) -> bool:
    """Return True if threads may be busy while GPUs are used: some layers are left to the CPU."""
    server = case.server
    asked_for_part = 0 < (server.gpu_layers or 0) < (case.model.layers or 0)
    says_part = 0 < (server.loaded_gpu_bytes or 0) < (server.loaded_bytes or 0)
    is_split = asked_for_part or says_part or bool(server.cpu_moe_layers)
    return is_split or server.kind in SPINNING_PROCESSES


def _says_none(case: Case) -> bool:
    """Return True if the driver or the engine itself says that it uses no GPU."""
    server = case.server
    if not server.loaded_bytes or server.loaded_gpu_bytes != 0:
        return server.gpu_indices == ()
    listed = [p for s in case.gpu_during("decode") for p in s.processes or () if p.is_server]
    return not (server.gpu_indices and listed and holds_some(case))


def _busiest(case: Case) -> float | None:
    gpus = by_gpu(case.gpu_during("decode")).values()
    known = [median(without_first_second(samples), lambda s: s.busy_ratio) for samples in gpus]
    return max((ratio for ratio in known if ratio is not None), default=None)


def _most_busy(case: Case) -> float:
    return MAX_SHARED_BUSY_RATIO if shares_memory(case) else MAX_BUSY_RATIO


def _busy_threads(case: Case) -> float | None:
    """Return how many threads or cores decoded; None where they were too few, or for too short."""
    host = need(case.host_during("decode") or None, "host samples during decode")
    counted = [s for s in host if s.server_busy_threads is not None]
    busy = [s for s in counted if (s.server_busy_threads or 0) >= MIN_BUSY_THREADS]
    if counted:
        most = max((s.server_busy_threads or 0 for s in busy), default=0)
        return float(most) if seconds(busy) >= MIN_BUSY_S else None
    cores = need(mean(host, lambda s: s.server_cpu_cores), "busy threads of the server")
    return cores if cores > CPU_DECODES_CORES and seconds(host) >= MIN_BUSY_S else None


def _finding(case: Case, busy_ratio: float | None, threads: float) -> Finding:
    expected_tps = need(case.envelope.expected_tps, "decode rate expected of this GPU")
    rate_tps = decode_tps(case)
    gpu = (serving_gpus(case) or case.device.gpus or ())[0].name or "the GPU"
    idle = "" if busy_ratio is None else f"was {100 * busy_ratio:.0f} % busy and "
    is_away = _is_driver_away(case) and not _says_none(case)
    guessed = is_away or (shares_memory(case) and not _says_none(case))
    held = "idled" if guessed else "held none of the model"
    said = f"while {gpu} {'' if guessed else idle}{held}"
    if is_away:
        said = f"while the driver of {gpu} did not answer ({case.device.gpus_reason})"
    evidence: tuple[Evidence, ...] = (
        Evidence(name="busy CPU threads", value=threads, unit="threads", limit=MIN_BUSY_THREADS),
        Evidence(name="decode rate", value=rate_tps, unit="tokens/s", limit=expected_tps),
    )
    if busy_ratio is not None:
        limit = 100 * _most_busy(case)
        busy = Evidence(name="GPU busy", value=100 * busy_ratio, unit="%", limit=limit)
        evidence = (busy, *evidence)
    return Finding(
        phase="decode",
        confidence=GUESSED_CONFIDENCE if guessed else SEEN_CONFIDENCE,
        lost_s=decode_s(case) * max(1 - rate_tps / expected_tps, 0.0),
        summary=(
            f"The engine decoded on {threads:.0f} CPU threads {said}{_wrongly(case)}: "
            f"{rate_tps:.1f} tokens/s instead of about {expected_tps:.0f}; decode lost about "
            f"{{lost}}."
        ),
        remedy=RESTART if is_away else use_the_gpu(case),
        evidence=evidence,
    )


def _wrongly(case: Case) -> str:
    on_gpu, loaded = case.server.loaded_gpu_bytes, case.server.loaded_bytes
    if not on_gpu or not loaded:
        return ""
    part = f"{100 * on_gpu / loaded:.0f} %"
    said = f"{engine_name(case.server)} said that {part} of the model was there"
    return f", although {said}"
