"""The engine reads weights from the disk again and again, because the memory cannot hold them.

Signal:
All through decode the server reads tens of megabytes per second from the disk and takes major page
faults, and the reading never stops. Each token waits for a part of the weights.

Not to be confused with:
- After a cold start the first tokens read the file once, and then the reading ends.
- `model-load`: the engine reads before the first token.
- `partial-offload`: the weights are in RAM, and nothing is read from the disk.
- `model-too-big`: the model is larger than all memory, and `storage-paging` is the symptom. Where
  the model is smaller, other programs or a limit take the memory, or the kernel gives up mapped
  pages too soon.

Remedy:
Use a smaller quantisation or model, add RAM, or run fewer other programs in it. If RAM for the
model is free, a limit on the server (of a container, of systemd) keeps the server from taking it:
raise the limit. If the model fits, load it without memory mapping or lock it, so that the kernel
cannot drop it.

Sources:
- ggml-org/llama.cpp#702 (7B on 8 GB: 160 MB/s read all the time, 180 s per token instead of 0.6).
- ollama/ollama#3054 (140 MB/s all the time; cured by use_mmap false).
- Measured with llama-server under a memory limit: 714 MB/s, 68 faults/s, 17 times slower, while the
  stall counters showed 15 % (I/O) and 35 % (memory): threads that spin, and the kernel's own work
  on pages, count as running. So the counters are a lower bound here.
- Measured with 4.5 GiB of weights under a limit of 3: 780 MB/s, 4.5 faults/s, most samples without
  one, stalls of 4 %, and a token in five seconds.
"""

from slowtok.detectors.analysis.paging import (
    MIN_FAULTS_PER_S,
    MIN_PAGING_S,
    MIN_READ_BYTES_PER_S,
    Paging,
    paging_of,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits
from slowtok.detectors.expectation.footprint import GIB

TITLE = "Model read from disk while decoding"
TRAITS = Traits(requires="host-samples")

CONFIDENCE = 0.95


def detect(case: Case) -> Finding | None:
    """Fire when reading and faulting cover most of the decode and last until its end."""
    paging = paging_of(case)
    if paging is None:
        return None
    return Finding(
        phase="decode",
        confidence=CONFIDENCE,
        lost_s=paging.lost_s,
        proof_s=paging.proof_s,
        summary=(
            f"The server read {paging.read_bytes_per_s / 1e6:.0f} MB/s from the disk for "
            f"{paging.paged_s:.0f} s of the decode because its weights do not stay in memory; "
            f"decode lost about {{lost}}."
        ),
        remedy=_remedy(case, paging.available_bytes),
        evidence=_evidence(paging),
    )


def _evidence(paging: Paging) -> tuple[Evidence, ...]:
    evidence = (
        Evidence(
            name="read from disk",
            value=paging.read_bytes_per_s / 1e6,
            unit="MB/s",
            limit=MIN_READ_BYTES_PER_S / 1e6,
        ),
        Evidence(
            name="major page faults", value=paging.faults_per_s, unit="1/s", limit=MIN_FAULTS_PER_S
        ),
        Evidence(name="time paging", value=paging.paged_s, unit="s", limit=MIN_PAGING_S),
    )
    if paging.available_bytes is None:
        return evidence
    available = Evidence(name="memory available", value=paging.available_bytes / GIB, unit="GiB")
    return (*evidence, available)


def _remedy(case: Case, available_bytes: float | None) -> str:
    file_bytes = case.model.file_bytes
    setting = {
        "llama-server": "start llama-server with --no-mmap or --mlock",
        "ollama": "set use_mmap to false",
    }.get(case.server.kind, "turn memory mapping off in the engine")
    if file_bytes is not None and available_bytes is not None and file_bytes < available_bytes:
        return (
            f"{available_bytes / GIB:.1f} GiB of RAM are free and the model file has "
            f"{file_bytes / GIB:.1f}: raise the memory limit of the server (docker run --memory, "
            f"systemd's MemoryMax=); if it has none, {setting}."
        )
    size = "" if file_bytes is None else f" (the model file has {file_bytes / GIB:.1f} GiB)"
    return f"Use a smaller quantisation or free RAM{size}; where it fits, {setting}."
