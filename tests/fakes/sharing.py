"""Requests on machines that have the same card."""

from dataclasses import replace

from fakes.cases import with_device, with_server
from fakes.learning import at
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.machine import GpuFacts


def card(uuid: str, *, index: int = 0) -> GpuFacts:
    """A card of the kind that all of them have."""
    return GpuFacts(
        index=index,
        uuid=f"GPU-{uuid}",
        name="NVIDIA GeForce RTX 4090",
        vendor="nvidia",
        total_bytes=24 * 2**30,
        bandwidth_bytes_per_s=1008e9,
        default_power_limit_w=450.0,
    )


def on(uuid: str, tps: float = 150.0, *, days_ago: float = 0.0) -> Case:
    """A request on the machine whose card this is; healthy between 76 and 210 tokens/s."""
    case = with_device(at(tps, days_ago=days_ago), gpus=(card(uuid),), os="linux")
    case = with_server(case, local=True, gpu_indices=(0,), kind="llama-server", version="b1")
    return replace(case, model=replace(case.model, digest="of the model"))
