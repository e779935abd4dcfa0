"""A record with every field that a record can have, and the names of a record's fields."""

from dataclasses import replace
from typing import Any

from fakes.cases import FIRING, serving, with_gpu, with_host, with_phases, with_timeline
from slowtok.detectors.case.case import Case, PromptPrefix, Range, Tokens
from slowtok.detectors.case.machine import GpuProcess, GpuSample
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.record import make_record
from slowtok.proxy.runs.run_register import RunPosition

GIB = 2**30


def full_case() -> Case:
    """A slow request of which everything is known, on a machine with GPUs."""
    hosted = with_host(
        with_full_gpus(FIRING["queued"]()),
        cpu_mhz=3400.0,
        server_quota_cores=2.0,
        server_major_faults_per_s=0.0,
    )
    expected = replace(
        hosted.envelope, as_configured=Range(low=40.0, high=60.0), because=("a reason",)
    )
    server = replace(hosted.server, name="main", version="b1-0", through="llama-swap")
    tokens = Tokens(prompt=240, cached=170, completion=450, drafted=20, accepted=9)
    timed = with_timeline(hosted, tokens=tokens, parse_errors=1, loop_lag_s=0.001)
    timed = with_phases(timed, queue_estimated=True)
    prompt = PromptPrefix(
        chars=1000,
        common_prefix_chars=16,
        shared_ratio=0.9,
        first_difference=16,
        difference_message=0,
        difference_role="system",
        difference_kind="time",
    )
    return replace(timed, envelope=expected, server=server, prompt=prompt)


def with_full_gpus(before: Case) -> Case:
    """The case with a GPU that tells everything, and one whose process may be anybody's."""
    seen = with_gpu(
        before,
        reasons=0x4,
        memory_busy_ratio=0.5,
        dram_busy_ratio=0.7,
        power_limit_w=350.0,
        sm_clock_mhz=1900,
        memory_clock_mhz=9501,
        pstate=2,
        temperature_c=60,
        temperature_margin_c=20,
        memory_temperature_c=70,
        total_bytes=24 * GIB,
        free_bytes=2 * GIB,
        reserved_bytes=GIB // 2,
        pcie_rx_bytes_per_s=1e6,
        pcie_tx_bytes_per_s=2e6,
        pcie_generation=4,
        pcie_width=16,
        power_source="ac",
        vgpu_licensed=True,
        processes=(
            replace(serving(), memory_bytes=18 * GIB, host_memory_bytes=GIB, evicted_bytes=0),
            GpuProcess(pid=99, name="game", memory_bytes=3 * GIB, is_server=False),
        ),
    )
    counting = [_counted(sample, i) for i, sample in enumerate(seen.gpu)]
    unknown = GpuProcess(pid=100, memory_bytes=GIB, is_server=None)
    other = [replace(sample, index=1, processes=(unknown,)) for sample in counting]
    named = tuple(replace(gpu, uuid="GPU-1") for gpu in seen.device.gpus or ())
    gpu = tuple(sample for pair in zip(counting, other, strict=True) for sample in pair)
    return replace(seen, gpu=gpu, device=replace(seen.device, gpus=named))


def _counted(sample: GpuSample, i: int) -> GpuSample:
    """The sample with what only grows: 150 W, and a tenth of the time under the power cap."""
    return replace(
        sample,
        energy_j=5000.0 + 75 * i,
        throttled_power_ns=10**9 + 50_000_000 * i,
        throttled_sw_thermal_ns=0,
        throttled_hw_thermal_ns=0,
        throttled_power_brake_ns=0,
        ecc_errors=3,
        remapped_rows=0,
        pcie_replays=2 * i,
        xid=79,
        xids=min(i, 1),
    )


def full_record() -> dict[str, Any]:
    """The record of it; failed and missing causes included."""
    diagnosis = diagnose(full_case())
    told = diagnose(FIRING["long-context"]()).findings
    judged = replace(
        diagnosis,
        findings={**diagnosis.findings, **told},
        reason="why there is no verdict",
        failed={"storage-paging": "KeyError"},
        missing={"cpu-quota": "CPU throttling of the server"},
    )
    return make_record(full_case(), judged) | of_its_run()


def of_its_run() -> dict[str, Any]:
    """What the record of a client's third request says of its run, see proxy/observe/runs.py."""
    place = RunPosition(
        id="0123456789abcdef", by="url", turn=3, parent=2, how="continued", name="night"
    )
    return {
        "run": {**place._asdict(), "reads": {"tool": 1.0}},
        "since_previous_ms": 250.0,
        "client": "OpenAI",
        "retry": 0,
    }


def names(value: Any, prefix: str = "") -> set[str]:
    """Name every field at every depth: `timing.queue_ms`, `findings[].cause`."""
    if isinstance(value, dict):
        return {
            name
            for key, inner in value.items()
            for name in names(inner, f"{prefix}.{key}" if prefix else key)
        }
    if isinstance(value, list) and value:
        return set().union(*(names(entry, f"{prefix}[]") for entry in value))
    return {prefix}
