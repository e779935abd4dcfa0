"""Where a published measurement had its weights and its KV cache: a reading of `ngl_or_offload`.

People write it in many ways: a number of layers, "ngl 32/41", "n-cpu-moe 36/48", "experts on CPU",
"cpu", "no-kv-offload", and sometimes the bandwidth of the RAM beside it.
"""

import re
from dataclasses import dataclass

_LAYERS = re.compile(r"^(?:ngl |-ngl )?(-?\d+)(?:/\d+)?\b")
_EXPERT_LAYERS = re.compile(r"n-cpu-moe (\d+)|(\d+) on cpu")
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?) gb/s")
EVERY_LAYER = 10_000
"""More layers than any model has: all experts in RAM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What is where. None is not known: the engine then puts as many layers on GPUs as fit."""

    gpu_layers: int | None = None
    cpu_moe_layers: int | None = None
    kv_on_gpu: bool | None = None
    ram_bandwidth_bytes_per_s: float | None = None

    @property
    def is_cpu(self) -> bool:
        """Say that nothing was on a GPU."""
        return self.gpu_layers == 0


def placement_of(said: str) -> Placement:
    """Return what the words say."""
    said = said.strip().lower()
    bandwidth = _BANDWIDTH.search(said)
    return Placement(
        gpu_layers=_gpu_layers(said),
        cpu_moe_layers=_expert_layers(said),
        kv_on_gpu=False if "no-kv-offload" in said else None,
        ram_bandwidth_bytes_per_s=float(bandwidth[1]) * 1e9 if bandwidth else None,
    )


def _gpu_layers(said: str) -> int | None:
    if said in {"cpu", "none"}:
        return 0
    if said == "all" or "experts on" in said:
        return EVERY_LAYER if "few" not in said else None
    found = _LAYERS.match(said)
    return None if found is None or int(found[1]) < 0 else int(found[1])


def _expert_layers(said: str) -> int | None:
    found = _EXPERT_LAYERS.search(said)
    if found is not None:
        return int(found[1] or found[2])
    return EVERY_LAYER if said.startswith("experts on cpu") else None
