"""A model's geometry by Ollama's word, for files that are not to be read from here.

`/api/show` gives the file's metadata without its longer arrays and without its tensors (they would
be a megabyte each time), so the weights read for a token stay unknown.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.models.kv_geometry import KvBytes, kv_bytes
from slowtok.proxy.engines.probing.reply import ProbeReply


def read_model(
    entry: Mapping[str, Any],
    shown: ProbeReply | None,
    *,
    path: str | None,
    on_disk_bytes: int | None,
) -> ModelFacts:
    """Return what `/api/ps` (one entry), `/api/tags` (its size) and `/api/show` say of a model.

    `on_disk_bytes` counts all of its files: beside the weights a projector, where there is one.
    """
    body = None if shown is None else shown.json
    info = body.get("model_info") if isinstance(body, dict) else None
    metadata = info if isinstance(info, dict) else {}
    details = entry.get("details")
    kv = _kv(metadata)
    parameters = _count(metadata.get("general.parameter_count"))
    return ModelFacts(
        name=entry.get("name"),
        path=path,
        digest=entry.get("digest"),
        quantisation=details.get("quantization_level") if isinstance(details, dict) else None,
        parameters=parameters,
        file_bytes=on_disk_bytes,
        layers=_count(_field(metadata, "{arch}.block_count")),
        experts=_count(_field(metadata, "{arch}.expert_count")),
        experts_used=_count(_field(metadata, "{arch}.expert_used_count")),
        kv_bytes_per_token=None if kv is None else kv.growing,
        kv_window_tokens=None if kv is None else kv.window_tokens,
        kv_window_bytes_per_token=None if kv is None else kv.windowed,
    )


def _kv(metadata: Mapping[str, Any]) -> KvBytes | None:
    """Return the bytes of the KV cache; None where a list that they depend on was left out.

    Layers that keep a state instead of keys are told by their tensors alone: also None.
    """
    layers = _count(_field(metadata, "{arch}.block_count"))
    geometry = {k: v for k, v in metadata.items() if not k.startswith(("general.", "tokenizer."))}
    left_out = any(value in (None, []) for value in geometry.values())
    recurrent = any(".ssm." in key or ".wkv" in key for key in geometry)
    if layers is None or left_out or recurrent:
        return None
    return kv_bytes(lambda key: _field(metadata, key), layers, frozenset())


def _field(metadata: Mapping[str, Any], key: str) -> Any:
    return metadata.get(key.format(arch=metadata.get("general.architecture")))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
