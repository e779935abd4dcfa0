"""The same setup was faster with another build of the engine.

Signal:
The GPU, the model's file, the KV cache's type, the length of the context and the number of requests
at once are the same, but another version of the engine served them, and this one gives clearly
less: below 0.70 of what the other gave if that was measured once, 0.75 if three times, 0.85 if five
times and more.

Not to be confused with:
- Something else may have changed when the engine was restarted: fewer layers on the GPU
  (`partial-offload`), a longer context, another process. If slowtok finds one of these, it comes
  first.
- `slow-kernel`: the engine is slow in any build.
- `model-load`, `kernel-compile`: only the first request after a start is slow.
- A drift within one version is not this cause.

Remedy:
Use the other build and report it to the engine's makers, or try an even newer build.

Sources:
- ggml-org/llama.cpp#20835 (b8323: 219 tokens/s before, a half to a third since), #17037, #17058
  (b6969: 106.9 before), unslothai/unsloth#11278; ollama/ollama#7717.
- Measured: PyPI's xllamacpp 2026.4.8672, then 2026.10.11549, on an AMD EPYC with AVX-512, which the
  newer build does not use; SmolLM2 135M Q4_0 with flash attention at 2,945 tokens: 53.9, then 27.4
  tokens per second of one core (`tests/engines/test_engine_regression.py`).
- The ratios: as for a setup's own past (`detectors/expectation/learned.py`).
"""

from slowtok.detectors.analysis.host_window import decode_s, decode_tps
from slowtok.detectors.analysis.phase_loss import ALONE_SEQUENCES, other_build
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, weigh
from slowtok.detectors.expectation.learned import learned_low_tps

TITLE = "Slower than another build"
TRAITS = Traits(phases=("decode",), in_exchange=True)


def detect(case: Case) -> Finding | None:
    """Fire when another build gave clearly more on the same setup."""
    before, version = other_build(case), case.history.other_version
    if before is None or before.decode_tps is None or case.neighbours.decode_mean > ALONE_SEQUENCES:
        return None
    low_tps, before_tps = learned_low_tps(before), before.decode_tps
    rate_tps, took_s = decode_tps(case), decode_s(case)
    if low_tps is None or rate_tps >= low_tps:
        return None
    lost_s = took_s * (1 - rate_tps / before_tps)
    return Finding(
        phase="decode",
        confidence=weigh("server", "inference"),
        lost_s=lost_s,
        summary=(
            f"Decode ran at {rate_tps:.1f} tokens/s where the same setup gave {before_tps:.1f} "
            f"with version {version} of the engine; it runs {case.server.version} now. That lost "
            f"about {{lost}}."
        ),
        remedy=(
            f"Go back to {version}, or try a newer version than {case.server.version}, and compare "
            "with slowtok bench; if nothing else changed, report it to the engine's makers."
        ),
        evidence=(
            Evidence(name="decode rate", value=rate_tps, unit="tokens/s", limit=low_tps),
            Evidence(name="with the other version", value=before_tps, unit="tokens/s"),
            Evidence(name="healthy requests then", value=before.count, unit="requests"),
        ),
    )
