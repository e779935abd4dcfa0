"""Names of the facts that detectors need, and how a user can make each one visible."""

from collections.abc import Iterable, Mapping

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import ModelFacts
from slowtok.detectors.case.machine import GpuFacts

_SAMPLES = (
    "the sampling process wrote no samples in that time: overhead.sampling in /slowtok/status says "
    "how it fares"
)
_PROCESS = (
    "slowtok must see the server's process: run it on the same machine, as the same user, and not "
    "behind a container's port forwarding"
)
_LINUX = f"{_PROCESS}, which runs Linux"
_SCHEDSTAT = f"{_PROCESS}; and the kernel needs CONFIG_SCHEDSTATS"
_TIMINGS = (
    "the engine must give its own timings: llama-server and Ollama do, vLLM does with "
    "--enable-per-request-metrics; streamed replies are timed without them, and with the setting "
    'split_nonstreamed = "stream" slowtok has every reply streamed'
)
_MODEL_FILE = "slowtok must be able to read the model file that the server has loaded"
_GPU = (
    "for NVIDIA the driver's libnvidia-ml must be loadable here (containers: --gpus all), for AMD "
    "the machine must run Linux, for Apple macmon must be installed"
)
PID_HOST = (
    "slowtok runs in a container with process numbers of its own, and the driver gives the host's: "
    "start the container with --pid=host"
)

_OTHERS = (
    "in requests of over a second slowtok reads them at llama-server's /slots, in vLLM's /metrics "
    "and, with --enable-metrics, in SGLang's; of other engines it sees only the requests that come "
    "through slowtok"
)

HOW_TO_ENABLE: Mapping[str, str] = {
    "CPU throttling of the server": _LINUX,
    "CPU time of the other processes": _SAMPLES,
    "CPU time of the server": _PROCESS,
    "GPU memory of the server": f"{_GPU}; a container also needs --pid=host",
    "GPU samples during decode": _GPU,
    "GPU samples during prefill": _GPU,
    "GPU time of each process": f"{_GPU}; a container also needs --pid=host",
    "GPU utilisation": f"{_GPU}; not available on MIG slices",
    "KV bytes read per token": _MODEL_FILE,
    "PCIe link of the working GPU": f"{_GPU}; virtual machines that share a GPU do not report it",
    "PCIe traffic": f"{_GPU}; AMD and virtual machines that share a GPU do not report it",
    "RAM bandwidth": (
        "slowtok serve measures it once, in a second without requests in which the cores rest; "
        "--ram-bandwidth gives it"
    ),
    "arrival times of the tokens": "only streamed replies have them (stream: true)",
    "bandwidth used of the GPU's memory": (
        f"{_GPU}; the driver counts it on data-centre GPUs and some newer cards only"
    ),
    "busy threads of the server": _PROCESS,
    "bytes read per token": _MODEL_FILE,
    "bytes the server reads from disk": f"{_PROCESS}; another user's process needs root",
    "clock of the CPU": "the kernel must tell it (cpufreq); virtual machines often do not",
    "clocks of the GPU": _GPU,
    "default power limit of the GPU": f"{_GPU}; laptops do not report it",
    "licence of the vGPU": _GPU,
    "power limit in force": _GPU,
    "power of the GPU": _GPU,
    "reasons for lower clocks": _GPU,
    "temperature margin of the GPU": _GPU,
    "decode rate": _TIMINGS,
    "decode rate expected of this GPU": _MODEL_FILE,
    "decode rate expected without drafts": _MODEL_FILE,
    "decode time": _TIMINGS,
    "decode time by the engine's own clock": (
        "llama-server and Ollama's own API tell it; start vLLM with --enable-per-request-metrics"
    ),
    "drafted and accepted tokens": (
        "the engine must count them: llama-server does so in its timings, vLLM in /metrics"
    ),
    "host samples during decode": _SAMPLES,
    "host samples during prefill": _SAMPLES,
    "memory of the GPU": f"{_GPU}; GPUs that use the machine's memory have none of their own",
    "length of the context": "the engine must report its token counts (usage)",
    "major page faults of the server": _LINUX,
    "number of CPU threads of the engine": (
        "start llama-server with --threads N, or let slowtok see the engine's process"
    ),
    "number of cores the server may use": _PROCESS,
    "number of generated tokens": "the engine must report its token counts (usage)",
    "number of prompt tokens": "the engine must report its token counts (usage)",
    "operating system of the machine": "slowtok must run on the machine that has the GPU",
    "prefill rate expected of this GPU": _MODEL_FILE,
    "prefill time": _TIMINGS,
    "other requests at the engine": _OTHERS,
    "preemptions counted by the engine": (
        "vLLM counts them in /metrics, which slowtok must be able to read"
    ),
    "processes on the GPU": f"{_GPU}; a container also needs --pid=host",
    "prompt tokens taken from the cache": (
        "start vLLM with --enable-prompt-tokens-details; Ollama tells them since 0.34"
    ),
    "size of the model file": _MODEL_FILE,
    "start of prefill": _TIMINGS,
    "time in the engine's queue": _TIMINGS,
    "time stalled on the disk (/proc/pressure)": "the kernel needs CONFIG_PSI (boot with psi=1)",
    "time the request was sent": "the request never reached the engine",
    "time the server was throttled": _LINUX,
    "time the server's threads waited for a core": _SCHEDSTAT,
    "whether a slot of the engine was free": _OTHERS,
    "whether flash attention is on": _PROCESS,
    "whether the model was loaded before the request": (
        "llama-server tells it in /props, Ollama in load_duration; other engines do not"
    ),
}

FIELDS: Mapping[str, str] = {
    "GPU memory of the server": "processes",
    "GPU samples during decode": "",
    "GPU samples during prefill": "",
    "GPU time of each process": "processes",
    "GPU utilisation": "busy_ratio",
    "PCIe link of the working GPU": "pcie_width",
    "PCIe traffic": "pcie_rx_bytes_per_s",
    "bandwidth used of the GPU's memory": "dram_busy_ratio",
    "clocks of the GPU": "sm_clock_mhz",
    "licence of the vGPU": "vgpu_licensed",
    "power limit in force": "power_limit_w",
    "power of the GPU": "power_w",
    "reasons for lower clocks": "reasons",
    "temperature margin of the GPU": "temperature_margin_c",
    "memory of the GPU": "total_bytes",
    "processes on the GPU": "processes",
}
"""Facts that are a field of `GpuSample`, which a GPU may be unable to give, or all of it ("")."""

_SAMPLED = frozenset(
    fact for fact, words in HOW_TO_ENABLE.items() if words.startswith((_SAMPLES, _PROCESS, _GPU))
)
"""Facts that the sampling process reads."""

# What a GPU can be asked: the name of each field of `GpuSample` for people, and who gives it.
#
# Source: nvml.h of CUDA 13.4 for what is supported where; amdgpu's files for AMD.

_COUNTERS = "the driver may be too old for these counters"
_OWN_MEMORY = "GPUs that use the machine's memory have none of their own: look at its RAM"
_WHOLE = "slices of a GPU (MIG) do not report it"
_ERRORS = "data-centre and workstation GPUs count them, GeForce cards do not"
_LINK = "virtual machines that share a GPU and GPUs without a PCIe slot do not report it"

NAMES: Mapping[str, str] = {
    "busy_ratio": "GPU utilisation",
    "memory_busy_ratio": "time with memory traffic",
    "power_w": "power",
    "power_limit_w": "power limit in force",
    "sm_clock_mhz": "clock of the processors",
    "memory_clock_mhz": "clock of the memory",
    "pstate": "performance state",
    "reasons": "reasons for lower clocks",
    "temperature_c": "temperature",
    "free_bytes": "memory of the GPU",
    "total_bytes": "memory of the GPU",
    "reserved_bytes": "memory that the driver reserves",
    "processes": "processes on the GPU",
    "temperature_margin_c": "temperature margin",
    "memory_temperature_c": "temperature of the memory",
    "dram_busy_ratio": "share of the memory bandwidth in use",
    "pcie_rx_bytes_per_s": "PCIe traffic",
    "pcie_tx_bytes_per_s": "PCIe traffic",
    "pcie_generation": "PCIe link",
    "pcie_width": "PCIe link",
    "energy_j": "energy",
    "throttled_power_ns": "time throttled",
    "throttled_sw_thermal_ns": "time throttled",
    "throttled_hw_thermal_ns": "time throttled",
    "throttled_power_brake_ns": "time throttled",
    "power_source": "power source",
    "vgpu_licensed": "vGPU licence",
    "ecc_errors": "memory errors",
    "remapped_rows": "memory errors",
    "pcie_replays": "PCIe errors",
    "xid": "critical errors (Xid)",
    "xids": "critical errors (Xid)",
}

WHO_HAS: Mapping[str, str] = {
    "busy_ratio": _WHOLE,
    "memory_busy_ratio": _WHOLE,
    "power_w": "virtual machines and Jetson boards do not report it",
    "power_limit_w": "laptops and virtual machines often do not report it",
    "reasons": "a newer driver may tell them",
    "free_bytes": _OWN_MEMORY,
    "total_bytes": _OWN_MEMORY,
    "reserved_bytes": "a newer driver may tell it",
    "processes": "WSL2 does not report them; a container needs --pid=host for it",
    "temperature_margin_c": "Ada and newer GPUs tell it, with a driver that knows them",
    "memory_temperature_c": "GPUs with HBM tell it, GeForce cards do not",
    "dram_busy_ratio": "Hopper and newer data-centre GPUs tell it",
    "pcie_rx_bytes_per_s": _LINK,
    "pcie_tx_bytes_per_s": _LINK,
    "pcie_generation": _LINK,
    "pcie_width": _LINK,
    "energy_j": "Volta and newer GPUs count it",
    "throttled_power_ns": _COUNTERS,
    "throttled_sw_thermal_ns": _COUNTERS,
    "throttled_hw_thermal_ns": _COUNTERS,
    "throttled_power_brake_ns": _COUNTERS,
    "power_source": "laptops tell it",
    "vgpu_licensed": "only virtual GPUs have one",
    "ecc_errors": _ERRORS,
    "remapped_rows": _ERRORS,
    "xid": "the driver reports them on Linux only",
    "xids": "the driver reports them on Linux only",
}


def how_to_enable(fact: str, case: Case | None = None) -> str:
    """Return how to make `fact` visible; with a case, why it was not visible there."""
    words = HOW_TO_ENABLE.get(fact, "slowtok knows no way to make it visible")
    field = FIELDS.get(fact)
    if case is not None and case.device.sampling_failure and fact in _SAMPLED:
        return case.device.sampling_failure
    if case is not None and words == _MODEL_FILE and _is_read(case.model):
        words = "; ".join(case.envelope.because) or words
    if case is None or field is None:
        return words
    if not case.device.gpus:
        reason = case.device.gpus_reason
        return f"{reason}; {words}" if reason else words
    if not field:
        return _SAMPLES
    if field == "processes" and case.device.private_pids:
        return PID_HOST
    return "; ".join(_reasons(case, field)) or words


def _reasons(case: Case, field: str) -> Iterable[str]:
    server_gpus = case.server.gpu_indices
    gpus = [gpu for gpu in case.device.gpus or () if not server_gpus or gpu.index in server_gpus]
    for gpu in gpus:
        if field in gpu.absent:
            why = why_absent(field, gpu.absent[field])
            yield f"{label(gpu)}: {why}" if len(gpus) > 1 else why


def label(gpu: GpuFacts) -> str:
    """Return a GPU's number and name."""
    return f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"


def _is_read(model: ModelFacts) -> bool:
    """Return True if the model file was read completely, so that something else is missing."""
    return model.read_bytes is not None and model.kv_bytes_per_token is not None


def name_of(field: str) -> str:
    """Return the display name of a field of `GpuSample`."""
    return NAMES.get(field, field)


def why_absent(field: str, reason: str) -> str:
    """Return why a GPU does not report a field, and which GPUs do."""
    return "; ".join(part for part in (reason, WHO_HAS.get(field)) if part)
