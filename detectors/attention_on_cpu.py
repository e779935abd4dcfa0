"""Attention that the CPU computes, because the build has no GPU code for the KV cache's type.

Sources: ggml-org/llama.cpp#28456 (q5_1: prefill 1,511 to 197 tokens/s), #28455 (which types).
"""

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.finding import Evidence, Finding, Missing, weigh
from slowtok.detectors.gpu_code import kv_types, lacks_attention
from slowtok.detectors.gpu_window import by_gpu, median, settled
from slowtok.detectors.placement import off_gpu
from slowtok.detectors.window import mean

COMPUTING_CORES = 2.0
"""One thread waits for the GPU, whatever it does; more of them compute."""

MAX_BUSY_RATIO = 0.85
"""A GPU that is busy for less of the time waits for something. Heuristic: healthy decodes are 90 to
99 % busy."""


def may_be_on_cpu(case: Case, phase: Phase) -> bool:
    """Say whether builds lack the code, and the server's threads compute or are not seen.

    Few threads compute, too, where the GPU waits for them.
    """
    cores = _cores(case, phase)
    computes = cores is None or cores >= COMPUTING_CORES or _gpu_waits(case, phase)
    return lacks_attention(case) and computes


def _gpu_waits(case: Case, phase: Phase) -> bool:
    gpus = by_gpu(case.gpu_during(phase)).values()
    busy = [median(settled(samples), lambda s: s.busy_ratio) for samples in gpus]
    known = [ratio for ratio in busy if ratio is not None]
    return bool(known) and sum(known) < MAX_BUSY_RATIO


def attention_on_cpu(case: Case, phase: Phase, lost_s: float, rate: Evidence) -> Finding | None:
    """Return the finding; None where a part of the model in RAM keeps the CPU busy.

    Where nobody sees the threads, the engine's word is believed with a doubt.
    """
    cores = _cores(case, phase)
    if _is_elsewhere(case, is_seen=cores is not None):
        return None
    key, value = kv_types(case.server)
    kind = key if key == value else f"{key} for keys and {value} for values"
    who = "the CPU probably" if cores is None else f"{cores:.1f} CPU cores"
    limit = COMPUTING_CORES if (cores or 0) >= COMPUTING_CORES else None
    seen = Evidence(name="CPU of the server", value=cores or 0, unit="cores", limit=limit)
    lost = Evidence(name=f"{phase} lost", value=lost_s, unit="s")
    return Finding(
        phase=phase,
        confidence=weigh("server", against=1) if cores is None else weigh("server", "gauge"),
        lost_s=lost_s,
        summary=(
            f"The KV cache is {kind}, for which usual builds have no attention code for the GPU: "
            f"{who} computed attention while the GPU waited; {phase} lost about {{lost}}."
        ),
        remedy=_remedy(case),
        evidence=(lost if cores is None else seen, rate),
    )


def _cores(case: Case, phase: Phase) -> float | None:
    return mean(case.host_during(phase), lambda s: s.server_cpu_cores)


def _is_elsewhere(case: Case, *, is_seen: bool) -> bool:
    try:
        return off_gpu(case) is not None
    except Missing:
        if is_seen:
            raise
        return False


def _remedy(case: Case) -> str:
    setting = {
        "llama-server": "--cache-type-k q8_0 --cache-type-v q8_0",
        "ollama": "OLLAMA_KV_CACHE_TYPE=q8_0",
    }.get(case.server.kind, "q8_0 for both")
    return (
        f"Start the engine with {setting} (or f16, or q4_0 for both), or take a build made with "
        "-DGGML_CUDA_FA_ALL_QUANTS=ON."
    )
