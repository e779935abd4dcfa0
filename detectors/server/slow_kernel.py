"""The GPU could do it faster: the engine has no good code for this GPU, or for this KV cache.

Signal:
The whole model is on the GPU, and decode or prefill is far below what it gives. Either an operator
has no GPU code, so that several CPU threads are busy and the GPU waits: flash attention with a type
of KV cache that llama.cpp's builds leave out, or with two types. Or the GPU is busy at its usual
clocks while its memory rests or its power is far below its own best, and nothing else is there; an
engine built before the GPU's generation was supported makes that likely.

Not to be confused with:
- `partial-offload`: weights or KV cache in RAM keep the CPU busy as well.
- `host-bound`: the GPU idles while one thread is busy, or CUDA graphs are off.
- `clocks-stuck`, `power-cap`: low clocks. `vram-spill`: the bus is busy.
- `gpu-shared`, `batch-shared`: another process or request works there.
- Stalls: slow code is slow at each token.
- `flash-attention-off`: known from the command line, costs with the context.
- A busy GPU with low power alone: healthy cards look like that, too, so that is never named.

Remedy:
A KV cache of f16, or of q8_0 or q4_0 for both; a newer build, made for this GPU.

Sources:
- ggml-org/llama.cpp#28456, #28455, #27109 (default builds have kernels for f16, bf16, q8_0, q4_0;
  prefill 1,511 to 197 tokens/s with q5_1; 1,100 to 34 with q4_1 and q8_0).
- am17an/llama.cpp#28 (GB10: decode 27.1 to 9.4, prefill 1,899 to 379 tokens/s with q5_1).
- Blackwellboy/model-serving-minefield, trap 46 (old build: 16 tokens/s, 98 % busy at 47 % of the
  power; new one: 40, at 80 %). ggml-org/llama.cpp#17906, #18436: the build that knows Blackwell.
"""

from slowtok.detectors.attention_on_cpu import attention_on_cpu, may_be_on_cpu
from slowtok.detectors.case import Case, Phase
from slowtok.detectors.clocks import decodes_on_gpu
from slowtok.detectors.finding import Channel, Evidence, Finding, need, weigh
from slowtok.detectors.gpu_code import (
    LLAMA_CPP,
    PoorUse,
    lacks_generation,
    poor_use,
)
from slowtok.detectors.gpu_window import facts_of
from slowtok.detectors.measured_loss import measured_loss
from slowtok.detectors.phases import judge_decode, prefill_excess_s
from slowtok.detectors.placement import off_gpu
from slowtok.detectors.shape import stalls_of, step_of
from slowtok.detectors.window import mean

TITLE = "No fast GPU code for this"

MAX_STALLED_RATIO = 0.5
"""Of what was lost: slow code is slow at each token. No published source."""

OLD_POWER_RATIO = 0.60
"""Of the power limit, where a build is known to be old: 0.47 in trap 46, 0.80 after the rebuild."""


def detect(case: Case) -> Finding | None:
    """Fire when what the engine runs has no fast code here, and it shows.

    No formula tells what slow code costs: it is charged with what was lost.
    """
    lost: dict[Phase, float] = {
        "decode": judge_decode(case).lost_s,
        "prefill": prefill_excess_s(case),
    }
    phase: Phase = "prefill" if lost["prefill"] > lost["decode"] else "decode"
    if lost[phase] <= 0 or not decodes_on_gpu(case):
        return None
    if may_be_on_cpu(case, phase):
        return attention_on_cpu(case, phase, lost[phase], _rate(case, phase))
    host = need(case.host_during(phase) or None, f"host samples during {phase}")
    need(mean(host, lambda s: s.server_cpu_cores), "CPU time of the server")
    if case.server.eager or case.server.flash_attention == "off":
        return None
    if phase == "decode" and _changed_in_mid_answer(case, lost[phase]):
        return None
    use = poor_use(case, phase)
    if use is None or off_gpu(case) is not None:
        return None
    return _poor_code(case, phase, lost[phase], use)


def _changed_in_mid_answer(case: Case, lost_s: float) -> bool:
    """Say whether the answer stood still, or its rate changed: slow code is slow at each token."""
    stalled_s = sum(stall.gap_s for stall in stalls_of(case))
    measured = measured_loss(case)
    changed = step_of(case) is not None or (
        measured is not None and measured.kind == "slower than itself"
    )
    return changed or stalled_s >= MAX_STALLED_RATIO * lost_s


def _poor_code(case: Case, phase: Phase, lost_s: float, use: PoorUse) -> Finding | None:
    since, gpu = lacks_generation(case), facts_of(case, use.index)
    channels: list[Channel] = list(use.channels)
    if since is not None and (channels or (use.power_ratio or 1.0) <= OLD_POWER_RATIO):
        channels += ["gauge"] if channels else ["gauge", "gauge"]
    if not channels:
        # a memory that is read slowly looks busy all the time: only what was read tells
        need(use.memory_counted or phase != "decode" or None, "bandwidth used of the GPU's memory")
        return None
    name, rate = gpu.name or "The GPU", _rate(case, phase)
    why = "nothing else that is visible explains it, so the engine's code must make poor use of it"
    if since is not None:
        why = f"the engine's build {case.server.version} is older than llama.cpp's code for it"
    return Finding(
        phase=phase,
        confidence=weigh("inference", *channels),
        lost_s=lost_s,
        summary=(
            f"{name} was {100 * use.busy_ratio:.0f} % busy at its usual clocks but gave only "
            f"{rate.value:.1f} tokens/s where about {rate.limit or 0:.0f} are usual: {why}; "
            f"{phase} lost about {{lost}}."
        ),
        remedy=_newer(case, since),
        evidence=(*use.evidence, rate),
    )


def _rate(case: Case, phase: Phase) -> Evidence:
    p, envelope = case.phases, case.envelope
    decode = phase == "decode"
    return Evidence(
        name=f"{phase} rate",
        value=(p.decode_tps if decode else p.prefill_tps) or 0.0,
        unit="tokens/s",
        limit=envelope.expected_tps if decode else envelope.expected_prefill_tps,
    )


def _newer(case: Case, since: int | None) -> str:
    if since is not None:
        return f"Take llama.cpp b{since} or later, made with CUDA 13 (or for architecture 120)."
    build = f" than {case.server.version}" if case.server.version else ""
    other = "Q4_K_M" if case.server.kind in LLAMA_CPP else "AWQ or FP8"
    return (
        f"Take a newer version of the engine{build}, made for this GPU; if that changes nothing, "
        f"try a common quantisation ({other}) and a 16-bit KV cache."
    )
