"""Flash attention is switched off, which makes long contexts slow.

Signal:
The engine was started without flash attention, the KV cache is a good part of what each token
reads, and decode or prefill is slower than the bytes explain. At short contexts it costs nothing.

Not to be confused with:
- `long-context`: the rate falls only as much as the bytes of the KV cache explain, which is normal.
- On a CPU, flash attention is often the slower way.
- `slow-kernel`: flash attention is on, but the GPU has no kernel for the type of the KV cache.
- vLLM and SGLang have no such switch.

Remedy:
Switch flash attention on: start llama-server with `--flash-attn on` (or leave the option out,
because newer builds decide themselves), or set OLLAMA_FLASH_ATTENTION=1 for Ollama.

Sources:
- halo-box/strix-llama.cpp#46 (27 tokens/s at no context; 16K tokens: 24.6 and 23.8 with, 20.1 and
  19.6 without; 48K tokens: 22.7 and 17.7 with, 8.6 and 7.7 without).
- ggml-org/llama.cpp#5021 (Mixtral at 7,840 tokens: decode 44.7 and 22.9, prefill 993 and 610).
- janhq/cortex.llamacpp#32, ggml-org/llama.cpp#6773 (short contexts: 0 to 4 %).
- llama-server before build 6325 leaves it off by default; its `--flash-attn` took no value.
"""

from slowtok.config.efficiency import constants
from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.host_window import decode_s, decode_tps
from slowtok.detectors.analysis.phase_loss import judge_decode, prefill_excess_s
from slowtok.detectors.analysis.placement.remedies import steps
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.engine import LLAMA_CPP
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need, weigh
from slowtok.detectors.expectation.memory import build_of

TITLE = "Flash attention is off"
TRAITS = Traits(requires="gpu-use", persistent=True, since_load=True)

AUTOMATIC_BUILD = 6325
"""From this build of llama.cpp on it is automatic."""

LONGER_KV = (1.7, 10.0)
"""How many times longer the KV cache takes on top: 1.7 to 2.2 (16K) and 3.6 to 10 (48K) times what
it takes with flash attention in strix-llama.cpp#46, about 10 in #5021."""

MIN_LOST_RATIO = 0.10
"""Of the decode as expected, at the least of that range. Heuristic: under it measurements
disagree about the sign."""

PREFILL_LOST_RATIO = 0.38
PREFILL_TOKENS = 4096
"""993 and 610 tokens/s for 7,840 tokens (#5021), 3,777 and 2,300 for 16,384 (ik_llama.cpp, Gemma);
4,096 tokens still lose a fifth, 512 nothing (ik_llama.cpp#241)."""


def detect(case: Case) -> Finding | None:
    """Fire when it is off, on a GPU, at a context long enough for that to cost."""
    server = case.server
    if server.kind not in LLAMA_CPP or server.flash_attention in ("on", "auto"):
        return None
    if not decodes_on_gpu(case):
        return None
    lost: dict[Phase, float] = {"decode": _decode_lost_s(case), "prefill": _prefill_lost_s(case)}
    phase = max(lost, key=lambda phase: lost[phase])
    if lost[phase] <= 0 or not _is_off(case):
        return None
    return _finding(case, phase, lost[phase])


def _is_off(case: Case) -> bool:
    server = case.server
    if server.flash_attention is not None:
        return server.flash_attention == "off"
    need(server.pid, "whether flash attention is on")
    build = build_of(server.version)
    return server.kind == "llama-server" and build is not None and build < AUTOMATIC_BUILD


def _decode_lost_s(case: Case) -> float:
    """Return what it cost the decode: in the published range, what is nearest to what happened."""
    envelope, judged = case.envelope, judge_decode(case)
    if judged.slow is not True:
        return 0.0
    tokens = need(case.timeline.tokens.completion, "number of generated tokens")
    kv = need(envelope.kv_bytes, "KV bytes read per token")
    bandwidth = need(envelope.bandwidth_bytes_per_s, "decode rate expected of this GPU")
    reached = need(envelope.efficiency_ratio, "decode rate expected of this GPU")
    expected_tps = need(envelope.expected_tps, "decode rate expected of this GPU")
    kv_s = tokens * kv / (bandwidth * reached * constants().kv_ratio)
    least_s, most_s = (times * kv_s for times in LONGER_KV)
    if least_s < MIN_LOST_RATIO * tokens / expected_tps:
        return 0.0
    return min(max(judged.lost_s, least_s), most_s, decode_s(case))


def _prefill_lost_s(case: Case) -> float:
    if (case.timeline.tokens.processed or 0) < PREFILL_TOKENS:
        return 0.0
    return min(prefill_excess_s(case), PREFILL_LOST_RATIO * (case.phases.prefill_s or 0.0))


def _finding(case: Case, phase: Phase, lost_s: float) -> Finding:
    tokens, context = case.timeline.tokens, case.envelope.context_tokens or 0
    processed = tokens.processed or 0
    rate_tps = decode_tps(case) if phase == "decode" else processed / (case.phases.prefill_s or 1)
    at = context if phase == "decode" else processed
    told = case.server.flash_attention == "off"
    how = "switched off" if told else "off, which is the default of this build"
    return Finding(
        phase=phase,
        confidence=weigh("server" if told else "gauge", "inference"),
        lost_s=lost_s,
        summary=(
            f"Flash attention is {how}: without it the KV cache of {at:,} tokens takes several "
            f"times as long to work through, and {phase} ran at {rate_tps:.1f} tokens/s; that lost "
            f"about {{lost}} here, and more the longer the context gets."
        ),
        remedy=steps(flash_attention_said(case.server.kind)),
        evidence=(
            Evidence(name="context", value=at, unit="tokens"),
            Evidence(name=f"{phase} rate", value=rate_tps, unit="tokens/s"),
            Evidence(
                name="KV cache per token", value=(case.envelope.kv_bytes or 0) / 2**20, unit="MiB"
            ),
        ),
    )


def flash_attention_said(kind: str) -> str:
    """Return how flash attention is switched on in this engine."""
    return {
        "llama-server": "start llama-server with --flash-attn on",
        "ollama": "set OLLAMA_FLASH_ATTENTION=1 for the Ollama server and restart it",
        "lm-studio": "switch on Flash Attention in the model's load settings in LM Studio",
    }.get(kind, "start the engine with flash attention on")
