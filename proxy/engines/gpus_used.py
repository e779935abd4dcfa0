"""Determines the GPUs that a server uses, from samples, GPU facts and its environment. Pure.

Strategy: a GPU is used if the server's process tree holds memory on it, as reported by the driver.
If the driver does not say, the variables that hide GPUs from a process may. Their numbers are
CUDA's, not NVML's: CUDA puts the fastest GPU first unless it is told to order by PCI address.

Sources: CUDA Programming Guide, "CUDA Environment Variables"; ROCm, "GPU isolation techniques".
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from slowtok.detectors.analysis.gpu.vram import split_vram
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuProcess, GpuSample

MAX_CUDA_CONTEXT_BYTES = 640 * 2**20
"""What a process takes on a GPU by merely looking at it: llama.cpp and Ollama show 0.3-0.6 GiB."""

CONTEXT_RATIO = 0.5
"""So little is no part of the model if another GPU has twice as much. Heuristic."""

VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}
GIVEN = "NVIDIA_VISIBLE_DEVICES"  # set for a container, by hand or by Kubernetes' device plugin
UUIDS = ("GPU-", "MIG-")


def gpus_used(
    samples: Iterable[GpuSample], device: DeviceFacts, server_environment: Mapping[str, str]
) -> tuple[int, ...] | None:
    """Return the GPUs that the server's process tree uses, from the newest samples (oldest first).

    Empty if it certainly uses none. None if that is not known: no GPU is visible, or neither the
    driver nor the environment shows it. Before its model is loaded a server uses none; the samples
    of a whole request show it at their end.
    """
    if not device.gpus:
        return None
    gpus = _independent(device.gpus)
    newest = {s.index: s for s in samples if s.processes is not None}
    uses = {gpu.index: _uses(newest.get(gpu.index), device) for gpu in gpus}
    if None in uses.values():
        allowed = _allowed(gpus, server_environment)
        uses = {index: allowed[index] if use is None else use for index, use in uses.items()}
    held = {index: _server_bytes(newest.get(index)) for index, use in uses.items() if use}
    if not held and (not uses or None in uses.values()):
        return None
    return _without_contexts(held)  # where it surely is; beside that, what nobody knows of is idle


def seen_from(samples: Iterable[GpuSample], pids: Collection[int]) -> tuple[GpuSample, ...]:
    """Return the samples with only the processes in `pids` marked as the server's."""
    return tuple([s if s.processes is None else _seen_from(s, pids) for s in samples])


def _seen_from(sample: GpuSample, pids: Collection[int]) -> GpuSample:
    processes = sample.processes or ()
    if not any(_is_foreign(process, pids) for process in processes):
        return sample
    seen = [replace(p, is_server=False) if _is_foreign(p, pids) else p for p in processes]
    return replace(sample, processes=tuple(seen))


def _is_foreign(process: GpuProcess, pids: Collection[int]) -> bool:
    return process.is_server is True and process.pid not in pids


def _independent(gpus: Sequence[GpuFacts]) -> tuple[GpuFacts, ...]:
    """Return the GPUs without those that are split into slices: programs use the slices (MIG)."""
    sliced = {gpu.partition_of for gpu in gpus}
    return tuple(gpu for gpu in gpus if gpu.uuid is None or gpu.uuid not in sliced)


def _uses(sample: GpuSample | None, device: DeviceFacts) -> bool | None:
    processes = () if sample is None else sample.processes or ()
    if any(p.is_server for p in processes):
        return True
    if sample is None or device.private_pids or any(p.is_server is None for p in processes):
        return None
    memory = split_vram(sample)
    # enough is in use on nobody's name: it may be the server's
    return None if memory is not None and memory.server_bytes is None else False


def _server_bytes(sample: GpuSample | None) -> int | None:
    """Return the server's known memory; None if none is known."""
    processes = () if sample is None else sample.processes or ()
    known = [p.memory_bytes for p in processes if p.is_server and p.memory_bytes is not None]
    return sum(known) if known else None


def _without_contexts(held: Mapping[int, int | None]) -> tuple[int, ...]:
    most = max((count for count in held.values() if count is not None), default=0)
    floor = min(MAX_CUDA_CONTEXT_BYTES, CONTEXT_RATIO * most)
    return tuple(sorted(i for i, count in held.items() if count is None or count >= floor))


def _allowed(gpus: Sequence[GpuFacts], environment: Mapping[str, str]) -> dict[int, bool | None]:
    """Return for each GPU whether the environment allows it; None if that does not say."""
    allowed = _given(gpus, environment)
    for vendor, variables in VARIABLES.items():
        own = [gpu for gpu in gpus if (gpu.vendor or "nvidia") == vendor]
        numbered = _in_order_of_numbers(own, environment)
        said = [_named(environment[v], own, numbered) for v in variables if v in environment]
        is_only = sum(allowed[gpu.index] is True for gpu in own) == 1
        for gpu in own:
            if any(named is not None and gpu.index not in named for named in said):
                allowed[gpu.index] = False
            elif said and allowed[gpu.index] is not False:
                allowed[gpu.index] = None if None in said and not is_only else True
    return allowed


def _given(gpus: Sequence[GpuFacts], environment: Mapping[str, str]) -> dict[int, bool | None]:
    """Return for each GPU whether the server's container was given it; numbers are nvidia-smi's.

    Source: NVIDIA Container Toolkit, "Specialized Configurations with Docker". "all" says nothing.
    """
    own = [gpu for gpu in gpus if (gpu.vendor or "nvidia") == "nvidia"]
    named = _named(environment.get(GIVEN, "all"), own, sorted(own, key=lambda gpu: gpu.index))
    said = {gpu.index: gpu.index in named for gpu in own} if named else {}
    return {gpu.index: said.get(gpu.index) for gpu in gpus}


def _in_order_of_numbers(
    gpus: Sequence[GpuFacts], environment: Mapping[str, str]
) -> Sequence[GpuFacts]:
    """Return the GPUs in the order of their numbers; empty if that is not known."""
    if len(gpus) == 1:
        return gpus
    by_address = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    # in a container that was given only some of them, the numbers count those alone
    given_all = environment.get(GIVEN, "all") == "all"
    sliced = any(gpu.partition_of for gpu in gpus)
    if not by_address or not given_all or sliced or not all(gpu.pci_bus_id for gpu in gpus):
        return ()
    return sorted(gpus, key=lambda gpu: gpu.pci_bus_id or "")


def _named(
    text: str, gpus: Sequence[GpuFacts], numbered: Sequence[GpuFacts]
) -> frozenset[int] | None:
    """Return the GPUs in such a list; None if one of them is not known.

    Anything but a number or a UUID ends the list: that is how all GPUs are hidden.
    """
    named: set[int] = set()
    for word in (word.strip() for word in text.split(",")):
        if word.isdecimal():
            found = [gpu for at, gpu in enumerate(numbered) if at == int(word)]
        elif word.upper().startswith(UUIDS):
            uuid = word.lower()
            found = [gpu for gpu in gpus if (gpu.uuid or "").lower().startswith(uuid)]
        else:
            break
        if len(found) != 1:
            return None
        named.add(found[0].index)
    return frozenset(named)
