"""Reports in which the disk was what took the time."""

from cases.parts import (
    GIB,
    Asked,
    Report,
    between,
    build,
    weights,
)
from slowtok.detectors.case.case import Baseline, History, ModelLoad


def _disk_70b() -> Report:
    case = build(
        Asked(tps=0.029, completion=33),
        kind="ollama",
        model=weights("llama2:70b", "Q4_0", like="Llama-2-70B"),
        cards=(),
        host={
            "server_read_bytes_per_s": 140e6,
            "server_major_faults_per_s": 140e6 / 131_072,
            "server_file_bytes": int(34e9),
            "server_busy_threads": 16,
        },
        host_span_s=10.0,
        server={"gpu_layers": 0, "gpu_indices": (), "memory_mapped": True, "threads": 16},
        device={
            "ram_bytes": 64 * GIB,
            "ram_bandwidth_bytes_per_s": 60e9,
            "cpu_physical_cores": 16,
            "cpu_logical_cores": 32,
        },
    )
    return Report(
        name="c10-disk-70b",
        url="https://github.com/ollama/ollama/issues/3054",
        says="16 threads read 140 MB/s from the disk all the time, 34 GB resident of 39, no GPU",
        case=case,
        slow=True,
        primary=("storage-paging",),
        inferred={
            "phases.decode_tps": "each token reads all weights: the 4.9 GB that are not resident "
            "come at 140 MB/s",
            "device.ram_bandwidth_bytes_per_s": "two channels of DDR5, as that CPU has",
            "host.server_major_faults_per_s": "reads of a mapped file are faults, and each brings "
            "at most the 128 KiB that Linux reads ahead",
        },
    )


def _disk_7b() -> Report:
    case = build(
        Asked(tps=1 / 180, completion=33),
        kind="llama-server",
        model=weights("llama-7b", "Q4_0", like="Llama-2-7B"),
        cards=(),
        host={"server_cpu_cores": between(0.3, 0.9)},
        host_span_s=30.0,
        server={"gpu_layers": 0, "gpu_indices": (), "memory_mapped": True},
        device={"os": "macos", "ram_bytes": 8 * GIB},
        baseline=Baseline(count=20, decode_tps=1 / 0.6),
    )
    return Report(
        name="v9-disk-7b",
        url="https://github.com/ggml-org/llama.cpp/issues/702",
        says="7B on a Mac with 8 GB: 0.6 s a token at first, then 180; CPU 30-90 %; 160 MB/s read, "
        "which slowtok cannot see there",
        case=case,
        slow=True,
        allowed=("storage-paging",),
        needs="what the server reads from the disk, which macOS does not tell",
        inferred={
            "baseline": "the same setup gave 0.6 s a token before",
            "model": "the 4-bit file of that time",
        },
    )


def _reload() -> Report:
    case = build(
        Asked(tps=None, completion=None, prompt=None, load_s=8.13, total_s=29.22),
        kind="ollama",
        model=weights("qwen2.5:72b", "Q4_K_M", like="Qwen2.5-72B"),
        server={"context_tokens": 16_384},
        history=History(
            loads=(
                ModelLoad(age_s=0.0, model="qwen2.5:72b", context_tokens=16_384, load_s=8.13),
                ModelLoad(age_s=120.0, model="qwen2.5:72b", context_tokens=16_384),
            )
        ),
    )
    return Report(
        name="v20-reload",
        url="https://github.com/ollama/ollama/issues/7408",
        says="the same model loaded again for a request: 8.13 s of 29.22 (a replay vector names "
        "Aider-AI/aider#4687, which gives no time)",
        case=case,
        slow=True,
        primary=("model-load",),
        allowed=("reload-degradation",),
        inferred={"history.loads": "it loaded before, too, which is what the report is about"},
    )


REPORTS = (
    _disk_70b,
    _disk_7b,
    _reload,
)
