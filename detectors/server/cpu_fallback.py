"""There is a GPU, but the engine computes on the CPU.

Signal:
During decode the GPU idles, the server holds no memory there that could be the model, and two or
more of its CPU threads are busy for at least two seconds.

Not to be confused with:
- An engine that was told to use no GPU (`--n-gpu-layers 0`), or one on another machine.
- `partial-offload`: a part of the model is on the GPU.
- `model-load`: the model is not there yet.
- `ollama ps` is no witness: old versions show 100 % GPU on the CPU.

Remedy:
A build of the engine with GPU support, a driver that it accepts, a container that sees the GPU
(`--gpus all`), and no CUDA_VISIBLE_DEVICES that hides it.

Sources:
- ollama/ollama#8623 (CPU at 600 %, graphics memory empty, shown as 100 % GPU), #7597, #11882.
"""

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Evidence, Finding, need
from slowtok.detectors.machine import GpuSample
from slowtok.detectors.window import decode_s, decode_tps, gpu_mean, seconds

TITLE = "Engine runs on the CPU, not on the GPU"

MAX_BUSY_RATIO = 0.05
"""Proposed, no published source: a desktop alone keeps a GPU this busy."""

MAX_MEMORY_SHARE = 0.05
"""Proposed, no published source: a CUDA context without weights, as a share of the model file."""

MIN_BUSY_THREADS = 2
MIN_BUSY_S = 2.0
"""Proposed, no published source: one busy thread also waits for a GPU that way."""

CONFIDENCE = 0.95


def detect(case: Case) -> Finding | None:
    """Fire when the CPU decodes beside an idle GPU that nobody asked it to leave alone."""
    if not case.device.gpus or case.server.gpu_layers == 0 or case.server.local is False:
        return None
    gpu = need(case.gpu_during("decode") or None, "GPU samples during decode")
    busy_ratio = need(gpu_mean(gpu, lambda s: s.busy_ratio), "GPU utilisation")
    if busy_ratio >= MAX_BUSY_RATIO:
        return None
    host = need(case.host_during("decode") or None, "host samples during decode")
    counted = [s for s in host if s.server_busy_threads is not None]
    need(counted or None, "busy threads of the server")
    busy = [s for s in counted if (s.server_busy_threads or 0) >= MIN_BUSY_THREADS]
    if seconds(busy) < MIN_BUSY_S or _holds_the_model(case, gpu):
        return None
    return _finding(case, busy_ratio, max(s.server_busy_threads or 0 for s in busy))


def _holds_the_model(case: Case, gpu: tuple[GpuSample, ...]) -> bool:
    file_bytes = case.model.file_bytes
    listed = [s.processes for s in gpu if s.processes is not None]
    need(listed or None, "processes on the GPU")
    held = [p.memory_bytes for processes in listed for p in processes if p.is_server]
    if not held:
        return False
    known = [need(memory_bytes, "GPU memory of the server") for memory_bytes in held]
    return max(known) >= MAX_MEMORY_SHARE * need(file_bytes, "size of the model file")


def _finding(case: Case, busy_ratio: float, threads: int) -> Finding:
    expected_tps = need(case.envelope.expected_tps, "decode rate expected of this GPU")
    rate_tps = decode_tps(case)
    lost_s = decode_s(case) * max(1 - rate_tps / expected_tps, 0.0)
    gpu = (case.device.gpus or ())[0].name or "the GPU"
    return Finding(
        phase="decode",
        confidence=CONFIDENCE,
        lost_s=lost_s,
        summary=(
            f"The engine decoded on {threads} CPU threads while {gpu} was {100 * busy_ratio:.0f} % "
            f"busy and held none of the model: {rate_tps:.1f} tokens/s instead of about "
            f"{expected_tps:.0f}; decode lost about {{lost}}."
        ),
        remedy=_remedy(case),
        evidence=(
            Evidence(name="GPU busy", value=100 * busy_ratio, unit="%", limit=100 * MAX_BUSY_RATIO),
            Evidence(
                name="busy CPU threads", value=threads, unit="threads", limit=MIN_BUSY_THREADS
            ),
            Evidence(name="decode rate", value=rate_tps, unit="tokens/s", limit=expected_tps),
        ),
    )


def _remedy(case: Case) -> str:
    engine = {
        "llama-server": "use a llama-server build with CUDA and start it with --n-gpu-layers 99",
        "ollama": "look for 'no compatible GPUs' in the Ollama server's log and reinstall Ollama",
        "vllm": "install the CUDA build of vLLM",
    }.get(case.server.kind, "use a build of the engine with GPU support")
    return (
        f"Check that nvidia-smi works where the engine runs (containers: --gpus all) and that "
        f"CUDA_VISIBLE_DEVICES does not hide the GPU; then {engine}."
    )
