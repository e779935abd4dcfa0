"""Lists what could not be inspected, and how to make it visible."""

from collections.abc import Iterator
from dataclasses import replace

from slowtok.detectors.case.machine import GpuFacts
from slowtok.detectors.case.named_facts import how_to_enable, name_of
from slowtok.proxy.inspection.check import Check
from slowtok.proxy.inspection.gpu_status import gpus_not_visible
from slowtok.proxy.inspection.seen import EngineSeen, Seen

REPORT_IT = "if it stays so, please report it as a bug in slowtok, with what --json says"
NO_SAMPLES = "the sampling process was too slow to start: look again when the machine is calmer"


def check_hidden(seen: Seen) -> Iterator[Check]:
    """Yield one check for each thing that was not to be seen."""
    for engine in seen.engines:
        yield from _of_engine(engine)
    yield from _of_gpus(seen)
    for failure in seen.failures:
        yield _hidden("sensor", f"a sensor failed: {failure}", None)
    if seen.device.sampling_failure is not None:
        yield _hidden("host", f"this machine: {seen.device.sampling_failure}", REPORT_IT)
    elif not seen.host:
        yield _hidden("host", "no reading of the host arrived", NO_SAMPLES)


def _of_engine(engine: EngineSeen) -> Iterator[Check]:
    server = engine.server
    if not engine.answers or engine.is_slowtok:
        return
    if server.local is False:
        where = server.unmapped or "the engine runs on another machine"
        said = f"{where}, so its memory, GPU, flags and host cannot be seen from here"
        yield _hidden("remote", said, "run slowtok doctor on the engine's machine", engine.name)
        return
    if server.pid is None:
        reason = f" ({server.unmapped})" if server.unmapped else ""
        said = f"its process is not visible{reason}, nor are its flags, its CPU time and its memory"
        yield _hidden("process", said, how_to_enable("CPU time of the server"), engine.name)


def _of_gpus(seen: Seen) -> Iterator[Check]:
    """Yield what is hidden of the GPUs, and in one line what each one never gives."""
    gpus = seen.device.gpus
    told = gpus and tuple(replace(gpu, absent={}) for gpu in gpus)
    for entry in gpus_not_visible(replace(seen.device, gpus=told), seen.gpu):
        yield _hidden("gpu", f"{entry['fact']}: {entry['why']}", entry.get("how_to_enable"))
    for gpu in gpus or ():
        if missing := _by_reason(gpu):
            yield Check(
                area="hidden", name="readings", about=f"GPU {gpu.index}", state="note",
                said=f"not given by this GPU: {missing}",
            )  # fmt: skip


def _by_reason(gpu: GpuFacts) -> str:
    names: dict[str, list[str]] = {}
    for field, why in gpu.absent.items():
        same = names.setdefault(why, [])
        if name_of(field) not in same and (field != "vgpu_licensed" or gpu.virtual):
            same.append(name_of(field))
    return "; ".join(f"{', '.join(same)} ({why})" for why, same in names.items() if same)


def _hidden(name: str, said: str, advice: str | None, about: str | None = None) -> Check:
    return Check(area="hidden", name=name, about=about, state="unknown", said=said, advice=advice)
