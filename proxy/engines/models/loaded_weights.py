"""The tensors of a checkpoint as an engine has them after loading. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from slowtok.proxy.engines.models.loading import Loading
from slowtok.proxy.engines.models.safetensors_facts import (
    ADDED,
    EMBEDDING,
    EXPERTS,
    LOOK_UPS,
    OUTPUT,
    ROUTER,
    SafetensorsTensor,
)

PLAIN = frozenset({"F64", "F32", "F16", "BF16"})
NO_WEIGHTS = frozenset({"BOOL", "I64"})


def is_quantised(tensors: Iterable[SafetensorsTensor]) -> bool:
    """Say whether any matrix of a checkpoint is; masks and positions beside them are none."""
    return any(
        tensor.dimensions > 1
        and tensor.type_name not in PLAIN | NO_WEIGHTS
        and not tensor.name.endswith("bias")
        for tensor in tensors
    )


def as_loaded(
    tensors: Iterable[SafetensorsTensor], asked: Loading, *, quantised: bool
) -> list[SafetensorsTensor]:
    """Return the tensors with the sizes that they have once loaded.

    `quantised` says that the checkpoint already was: then only its plain tensors are cast.
    """
    return [replace(t, size_bytes=_size_bytes(t, asked, quantised)) for t in tensors]


def _size_bytes(tensor: SafetensorsTensor, asked: Loading, quantised: bool) -> int:
    if tensor.type_name not in PLAIN or ADDED.search(tensor.name):
        return tensor.size_bytes
    bits = None if quantised else _online_bits(tensor, asked)
    return round(tensor.elements * (bits or asked.plain_bits) / 8)


def _online_bits(tensor: SafetensorsTensor, asked: Loading) -> float | None:
    """Return the bits that loading makes of a weight, None where it stays plain.

    Norms, biases, routers and convolutions are no linear layers for these methods, nor are
    embeddings and the output matrix (vLLM: `get_quant_method` of online/base.py goes by
    `LinearBase` and `RoutedExperts`; SGLang: by `LinearBase` and `FusedMoE`).
    """
    name = tensor.name
    if tensor.dimensions < 2 or name.endswith("bias") or "conv1d" in name:
        return None
    if EXPERTS.search(name):
        return asked.expert_bits
    beside = any(kind.search(name) for kind in (EMBEDDING, LOOK_UPS, OUTPUT, ROUTER))
    return None if beside else asked.linear_bits
