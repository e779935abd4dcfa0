"""Weights are read from the disk again and again, because the memory cannot hold them.

Signal:
All through decode the server reads tens of megabytes per second from the disk and takes major
page faults, and it never stops. Each token waits for a part of the weights.

Not to be confused with:
- A cold start: the first tokens after a load read the file once, then reading ends.
- `model-load`: reading before the first token.
- `partial-offload`: weights in RAM, nothing is read.
- `model-too-big`: the model is larger than all memory. Then this is the symptom; where it is
  smaller, other programs or a limit take the memory, or the kernel gives up mapped pages too soon.

Remedy:
A smaller quantisation or model, more RAM, or fewer other programs in it. Where the model fits, load
it without memory mapping or lock it, so that the kernel cannot drop it.

Sources:
- ggml-org/llama.cpp#702 (7B on 8 GB: 160 MB/s read all the time, 180 s per token instead of 0.6).
- ollama/ollama#3054 (140 MB/s all the time; cured by use_mmap false).
- Measured with llama-server under a memory limit: 714 MB/s, 68 faults/s, 17 times slower, while the
  stall counters showed 15 % (I/O) and 35 % (memory): threads that spin, and the kernel's own work
  on pages, count as running. So the counters are a lower bound here.
"""

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Evidence, Finding, need
from slowtok.detectors.machine import HostSample
from slowtok.detectors.window import decode_s, decode_tps, mean, need_samples, seconds

TITLE = "Model read from disk while decoding"

MIN_READ_BYTES_PER_S = 50e6
"""Proposed, no published source; reported cases read 140 and 160 MB/s."""

MIN_FAULTS_PER_S = 10
"""No published source. Reading ahead brings megabytes per fault: measured 68/s at 714 MB/s."""

MIN_PAGING_S = 3.0
"""Proposed, no published source: shorter is a cold page cache."""

MIN_PAGING_RATIO = 0.5
"""No published source: paging that lasts covers the decode, a cold start does not."""

MIN_WEIGHTS_RATIO = 0.10
"""Above this share of the weights per token the disk decides: RAM is ten and more times faster."""

LEAST_WEIGHTS_RATIO, MOSTLY_STALLED_RATIO = 0.01, 0.5
"""From a hundredth on, the disk decides where all of the machine's work stood still for it most of
the time: a thread that spins for the GPU hides a part of that from the kernel's count. Proposed, no
published source."""

MOST_RATIO = 0.97
"""Something of the decode did happen."""

CONFIDENCE = 0.95


def detect(case: Case) -> Finding | None:
    """Fire when reading and faulting cover most of the decode and last until its end."""
    samples = need(case.host_during("decode") or None, "host samples during decode")
    known = [s for s in samples if s.server_major_faults_per_s is not None]
    need(known or None, "major page faults of the server")
    faulting = [s for s in known if (s.server_major_faults_per_s or 0) >= MIN_FAULTS_PER_S]
    if seconds(faulting) < MIN_PAGING_S:
        need_samples(case, "decode")
        return None
    need(mean(faulting, lambda s: s.server_read_bytes_per_s), "bytes the server reads from disk")
    paging = [s for s in faulting if (s.server_read_bytes_per_s or 0) >= MIN_READ_BYTES_PER_S]
    if not _lasting(paging, known):
        return None
    read_bytes_per_s = mean(paging, lambda s: s.server_read_bytes_per_s) or 0.0
    proof_s = min(_stalled_ratio(paging) or 0.0, MOST_RATIO) * min(seconds(paging), decode_s(case))
    lost_s = max(decode_s(case) * _lost_ratio(case, paging, read_bytes_per_s), proof_s)
    return Finding(
        phase="decode",
        confidence=CONFIDENCE,
        lost_s=lost_s,
        proof_s=proof_s,
        summary=(
            f"The server read {read_bytes_per_s / 1e6:.0f} MB/s from the disk for "
            f"{seconds(paging):.0f} s of the decode because its weights do not stay in memory; "
            f"decode lost about {{lost}}."
        ),
        remedy=_remedy(case),
        evidence=_evidence(paging, read_bytes_per_s),
    )


def _lasting(paging: list[HostSample], known: list[HostSample]) -> bool:
    return (
        seconds(paging) >= max(MIN_PAGING_S, MIN_PAGING_RATIO * seconds(known))
        and paging[-1] in known[-max(len(known) // 3, 1) :]
    )


def _lost_ratio(case: Case, paging: list[HostSample], read_bytes_per_s: float) -> float:
    """Blame the disk for all beyond the expected time where it brings a notable part of each token.

    Otherwise the share of the time that the kernel counted as stalled on pages.
    """
    rate_tps = decode_tps(case)
    weights, expected_tps = case.envelope.read_bytes, case.envelope.expected_tps
    stalled_ratio = _stalled_ratio(paging)
    if weights and expected_tps:
        stands_still = (stalled_ratio or 0.0) >= MOSTLY_STALLED_RATIO
        least_ratio = LEAST_WEIGHTS_RATIO if stands_still else MIN_WEIGHTS_RATIO
        if read_bytes_per_s / rate_tps >= least_ratio * weights:
            return max(1 - rate_tps / expected_tps, 0.0)
    return need(stalled_ratio, "time stalled on the disk (/proc/pressure)")


def _stalled_ratio(paging: list[HostSample]) -> float | None:
    """Return the share of the time in which nothing on the machine ran, for want of pages.

    The server read and faulted all that time, so it is among those that stood still.
    """
    stalled = [
        mean(paging, lambda s: s.psi_memory_full_ratio),
        mean(paging, lambda s: s.psi_io_full_ratio),
    ]
    return max([ratio for ratio in stalled if ratio is not None], default=None)


def _evidence(paging: list[HostSample], read_bytes_per_s: float) -> tuple[Evidence, ...]:
    faults = mean(paging, lambda s: s.server_major_faults_per_s) or 0.0
    available = mean(paging, lambda s: s.available_bytes)
    evidence = (
        Evidence(
            name="read from disk",
            value=read_bytes_per_s / 1e6,
            unit="MB/s",
            limit=MIN_READ_BYTES_PER_S / 1e6,
        ),
        Evidence(name="major page faults", value=faults, unit="1/s", limit=MIN_FAULTS_PER_S),
        Evidence(name="time paging", value=seconds(paging), unit="s", limit=MIN_PAGING_S),
    )
    if available is None:
        return evidence
    return (*evidence, Evidence(name="memory available", value=available / 2**30, unit="GiB"))


def _remedy(case: Case) -> str:
    file_bytes = case.model.file_bytes
    size = "" if file_bytes is None else f" (the model file has {file_bytes / 2**30:.1f} GiB)"
    remedy = f"Use a smaller quantisation or free RAM{size}"
    setting = {
        "llama-server": "start llama-server with --no-mmap or --mlock",
        "ollama": "set use_mmap to false",
    }.get(case.server.kind, "turn memory mapping off in the engine")
    return f"{remedy}; where it fits, {setting}."
