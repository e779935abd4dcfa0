"""One benchmark's result, as it is kept in a file and read again. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson

from slowtok.proxy.cli.bench.figures import BenchRun, Figure, to_json
from slowtok.proxy.outputs.record import known

EVENT, SCHEMA = "bench", 1
NOT_TOLD = "?"

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


class BadResult(Exception):
    """A file that holds no result. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was run on what, and what came out. `at` is ISO 8601."""

    at: str
    protocol: Mapping[str, Any]
    setup: Mapping[str, Any]
    figures: tuple[Figure, ...]
    runs: tuple[BenchRun, ...] = ()

    @property
    def model(self) -> str:
        """Which model answered."""
        return str(self.setup.get("model", {}).get("name", NOT_TOLD))

    def as_json(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "event": EVENT,
            "schema": SCHEMA,
            "at": self.at,
            "protocol": dict(self.protocol),
            "setup": dict(self.setup),
            "figures": [
                {
                    "name": f.name,
                    "unit": f.unit,
                    "more_is_better": f.more_is_better,
                    "median": round(f.median, 3),
                    "spread": None if f.spread is None else round(f.spread, 3),
                    "values": list(f.values),
                }
                for f in self.figures
            ],
            "runs": [to_json(run) for run in self.runs],
        }


def read_result(content: bytes) -> Result:
    """Return what `as_json` wrote.

    Raises:
        BadResult: it is something else, or from a version that wrote it otherwise.
    """
    try:
        said = orjson.loads(content)
        if said["event"] != EVENT:
            raise BadResult("this is not a result of slowtok bench")
        if said["schema"] != SCHEMA:
            raise BadResult(f"its schema is {said['schema']!r}; this version reads {SCHEMA}")
        return Result(
            at=str(said["at"]),
            protocol=dict(said["protocol"]),
            setup=dict(said["setup"]),
            figures=tuple(_figure(figure) for figure in said["figures"]),
            runs=tuple(_run(run) for run in said["runs"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadResult(f"this is not a result of slowtok bench ({type(error).__name__})") from None


def _run(said: Mapping[str, Any]) -> BenchRun:
    """Return a run; fields that another version wrote are left out."""
    names = {field.name for field in fields(BenchRun)}
    values = {name: value for name, value in said.items() if name in names}
    findings = tuple({**f, "cause": str(f["cause"])} for f in values.pop("findings", ()))
    return BenchRun(**values, findings=findings)


def _figure(said: Mapping[str, Any]) -> Figure:
    values = tuple(float(value) for value in said["values"])
    if not values:
        raise BadResult(f"its figure {said['name']!r} has no values")
    return Figure(
        name=str(said["name"]),
        unit=str(said["unit"]),
        values=values,
        more_is_better=bool(said["more_is_better"]),
    )


def setup_of(status: Status, model: str) -> dict[str, Any]:
    """Return the facts that two results can be compared by; what is not known is left out."""
    engine = engine_of(status, model) or {}
    machine = status.get("machine") or {}
    setup: dict[str, Any] = known(
        {
            "slowtok": status.get("version"),
            "engine": _told(engine, _ENGINE),
            "model": {"name": model, **_told(model_of(engine, model), _MODEL[1:])},
            "machine": {**_told(machine, _MACHINE), "on_battery": machine.get("on_battery")},
            "gpus": [_told(gpu, _GPU) for gpu in status.get("gpus") or []],
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


def _told(facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: facts[name] for name in names if facts.get(name) is not None}
