"""The setup of a result, out of the status: build, flags, model, context, machine. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from slowtok.proxy.outputs.record import known

_ENGINE = [
    "kind",
    "version",
    "context_tokens",
    "slots",
    "gpu_layers",
    "cpu_moe_layers",
    "threads",
    "kv_type_k",
    "kv_type_v",
    "kv_on_gpu",
    "flash_attention",
    "memory_mapped",
    "speculative",
    "batch_tokens",
    "micro_batch_tokens",
    "split_mode",
    "tensor_parallel",
    "gpu_indices",
    "gpu_memory_ratio",
    "kv_cache_tokens",
    "prefix_caching",
    "eager",
    "cpu_offload_bytes",
    "unified_memory",
    "local",
]
_MODEL = ["name", "digest", "quantisation", "parameters", "file_bytes", "layers"]
_MACHINE = [
    "os",
    "cpu_physical_cores",
    "cpu_logical_cores",
    "ram_bytes",
    "power_profile",
    "cpu_governor",
]
_GPU = ["index", "name", "vendor", "driver", "total_bytes", "power_limit_w"]

Status = Mapping[str, Any]


def setup_of(status: Status, model: str) -> dict[str, Any]:
    """Return the facts that two results can be compared by; what is not known is left out."""
    engine = engine_of(status, model) or {}
    machine = status.get("machine") or {}
    setup: dict[str, Any] = known(
        {
            "slowtok": status.get("version"),
            "engine": _some(engine, _ENGINE),
            "model": {"name": model, **_some(model_of(engine, model), _MODEL[1:])},
            "machine": {**_some(machine, _MACHINE), "on_battery": machine.get("on_battery")},
            "gpus": [_some(gpu, _GPU) for gpu in status.get("gpus") or []],
        }
    )
    return setup


def engine_of(status: Status, model: str) -> Mapping[str, Any] | None:
    """Return the engine that has the model; the first one where none lists it."""
    engines: Sequence[Mapping[str, Any]] = status.get("engines") or []
    having = (e for e in engines if any(m.get("name") == model for m in e.get("models") or []))
    return next(having, engines[0] if engines else None)


def model_of(engine: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """Return what is known of the model; of an engine's only one, whatever it is called."""
    models: Sequence[Mapping[str, Any]] = engine.get("models") or []
    same = (m for m in models if m.get("name") == model)
    return next(same, models[0] if len(models) == 1 else {})


def _some(facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: facts[name] for name in names if facts.get(name) is not None}
