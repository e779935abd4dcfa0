"""Weights that the server reads from the disk again and again while it decodes, and their cost.

Strategy: paging lasts through the decode, with reading and major page faults together; a cold start
does not. Where the disk brings a notable part of each token, it is blamed for all beyond the
expected time; otherwise for the time that the kernel counted as stalled on pages.
"""

from dataclasses import dataclass

from slowtok.detectors.analysis.host_window import decode_s, decode_tps, mean, need_samples, seconds
from slowtok.detectors.analysis.phase_loss import MAX_LOST_RATIO
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import need
from slowtok.detectors.case.machine import HostSample

MIN_READ_BYTES_PER_S = 50e6
"""Heuristic; reported cases read 140 and 160 MB/s."""

MIN_FAULTS_PER_S = 1.0
"""On average, a sample may have none. Heuristic. Reading ahead brings many megabytes per fault:
measured 68/s at 714 MB/s, and 4.5/s at 780 MB/s where the kernel reads 8 MiB ahead."""

MIN_PAGING_S = 3.0
"""Heuristic: shorter is a cold page cache."""

MIN_PAGING_RATIO = 0.5
"""Heuristic: paging that lasts covers the decode, a cold start does not."""

MIN_WEIGHTS_RATIO = 0.10
"""Above this share of the weights per token the disk decides: RAM is ten and more times faster."""

LEAST_WEIGHTS_RATIO, MOSTLY_STALLED_RATIO = 0.01, 0.5
"""From a hundredth on, the disk decides where all of the machine's work stood still for it most of
the time: a thread that spins for the GPU hides a part of that from the kernel's count.
Heuristic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """Reading weights from the disk during decode; means are over the `paged_s` seconds of it.

    `proof_s` is the part of `lost_s` that the kernel counted as stalled.
    """

    lost_s: float
    proof_s: float
    paged_s: float
    read_bytes_per_s: float
    faults_per_s: float
    available_bytes: float | None


def paging_of(case: Case) -> Paging | None:
    """Return the paging of a decode; None where it was none, or did not last.

    Raises:
        Missing: a fact that decides it is not known.
    """
    samples = need(case.host_during("decode") or None, "host samples during decode")
    known = [s for s in samples if s.server_major_faults_per_s is not None]
    need(known or None, "major page faults of the server")
    faults_per_s = mean(known, lambda s: s.server_major_faults_per_s) or 0.0
    if faults_per_s < MIN_FAULTS_PER_S or seconds(known) < MIN_PAGING_S:
        need_samples(case, "decode")
        return None
    need(mean(known, lambda s: s.server_read_bytes_per_s), "bytes the server reads from disk")
    paging = [s for s in known if (s.server_read_bytes_per_s or 0) >= MIN_READ_BYTES_PER_S]
    if not _lasting(paging, known):
        return None
    read_bytes_per_s = mean(paging, lambda s: s.server_read_bytes_per_s) or 0.0
    proof_s = min(_stalled_ratio(paging) or 0.0, MAX_LOST_RATIO) * min(
        seconds(paging), decode_s(case)
    )
    return Paging(
        lost_s=max(decode_s(case) * _lost_ratio(case, paging, read_bytes_per_s), proof_s),
        proof_s=proof_s,
        paged_s=seconds(paging),
        read_bytes_per_s=read_bytes_per_s,
        faults_per_s=mean(paging, lambda s: s.server_major_faults_per_s) or 0.0,
        available_bytes=mean(paging, lambda s: s.available_bytes),
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
