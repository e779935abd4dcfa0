"""Rates of batching engines for one stream: vLLM, SGLang, TensorRT-LLM, LMDeploy.

    t = (weights / narrow + KV / kv_ratio) / (efficiency x peak) + layers x layer_s

The same form as for llama.cpp and its kin, with constants of their own: they prepare each step on
the CPU for a whole batch, so that a layer costs more, and several GPUs share each layer. Fitted on
published single streams by `make fit`; docs/envelope.md has the residuals.

Without CUDA graphs (eager mode) the same engines take 2 to 8 times as long. That is a cause to be
found, so that the reference has graphs.
"""

import re
from dataclasses import dataclass

from slowtok.config.efficiency import constants
from slowtok.config.hardware import GpuSpec
from slowtok.detectors.case.engine import ModelFacts, ServerFacts

SERVING_ENGINES = ("vllm", "sglang", "trtllm", "lmdeploy")
NARROW_BITS = 5.5  # bits per weight up to which a type is unpacked from 4: AWQ, GPTQ, NVFP4, MXFP4
V1_VLLM = (0, 8)  # the first version whose own scheduler is the one of today ("V1")
OLD_YEAR = 2024  # what published rows say of engines whose version they do not
_YEAR, _VERSION = re.compile(r"\b(20\d\d)\b"), re.compile(r"\b(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How one of these engines reads the memory of `count` GPUs together; see the formula."""

    efficiency_ratio: float
    kv_ratio: float
    layer_s: float
    low_ratio: float
    high_ratio: float


def serving(spec: GpuSpec, model: ModelFacts, server: ServerFacts, count: int) -> Serving:
    """Return the constants of an engine on GPUs of a kind, `count` of which share each layer."""
    known = constants().serving
    memory, engine = known.memory[memory_class(spec)], known.engine[server.kind]
    is_moe, several = (model.experts or 0) > 1, count > 1
    layer_s = engine.layer_ratio * memory.layer_s
    layer_s += memory.moe_layer_s if is_moe else 0.0
    layer_s += memory.tensor_layer_s if several else 0.0
    layer_s += known.moe_tensor_layer_s if several and is_moe else 0.0
    layer_s += known.old_layer_s if is_old(server) else 0.0
    narrow = known.narrow_ratio if is_narrow(model) else 1.0
    return Serving(
        efficiency_ratio=memory.efficiency_ratio * engine.efficiency_ratio * narrow,
        kv_ratio=known.kv_ratio,
        layer_s=layer_s,
        low_ratio=memory.several_low_ratio if several else memory.low_ratio,
        high_ratio=memory.several_high_ratio if several else memory.high_ratio,
    )


def memory_class(spec: GpuSpec) -> str:
    """Return which memory's constants a GPU has: AMD's HBM is driven by other software."""
    return "instinct" if spec.maker == "amd" and spec.memory == "hbm" else spec.memory


def is_narrow(model: ModelFacts) -> bool:
    """Return True if the weights have about 4 bits."""
    return model.bits_per_weight is not None and model.bits_per_weight <= NARROW_BITS


def is_old(server: ServerFacts) -> bool:
    """Return True for an engine of 2024 or before, or a vLLM before 0.8; False if not known.

    Only vLLM's numbers tell its age.
    """
    said = server.version or ""
    year, version = _YEAR.search(said), _VERSION.search(said)
    if year is not None:
        return int(year[1]) <= OLD_YEAR
    if version is None or server.kind != "vllm":
        return False
    return (int(version[1]), int(version[2])) < V1_VLLM
