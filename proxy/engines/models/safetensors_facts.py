"""The tensor table of safetensors files, and what follows from it. Only headers are read.

A file begins with the length of its header (8 bytes, little endian) and the header, a JSON object:
name of a tensor: type, shape, first and last byte.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import orjson

MAX_HEADER_BYTES = 100_000_000  # the format's own limit

# Networks beside the one that writes text, and layers that predict further tokens.
NOT_THE_DECODER = re.compile(
    r"(^|\.)(visual|vision\w*|audio\w*|speech_encoder|multi_modal_projector|mm_projector"
    r"|embed_vision|embed_audio|patch_embed|mtp)\.|^(model\.)?encoder\."
)
EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|embeddings?|shared)\.[^.]+$"
)
# One row is read, not the table.
LOOK_UPS = re.compile(
    r"(^|\.)(embed_tokens_per_layer|wpe|embed_positions|position_embeddings?|rotary_emb)\."
)
OUTPUT = re.compile(r"(^|\.)(lm_head|embed_out|output_layer)\.|^(model\.)?output\.[^.]+$")
EXPERTS = re.compile(r"(^|\.)experts\.|\.block_sparse_moe\.(input|output)_linear\.")
LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)\.")
KEYS = re.compile(
    r"(.*)\.(k_proj|qkv_proj|qkv|kv_a_proj_with_mqa|c_attn|query_key_value|Wqkv|wqkv|wk|wkv_a"
    r"|in_proj_qkv|kv_proj|to_k|key)\.[^.]+$"
)
ROUTER = re.compile(
    r"(^|\.)(mlp\.gate|router(\.\w+)?|shared_expert_gate|block_sparse_moe\.gate)\.[^.]+$"
)
# Of a recurrent layer, whose keys are not kept; of a short convolution.
STATE = re.compile(r"(.*)\.(A_log|conv\.conv\.weight)$")
# What quantisation adds: no parameters of the model.
ADDED = re.compile(
    r"(scales?|_scale_inv|_scale_2|scale_inv|qzeros|zeros|zero_point|g_idx|weight_shape|absmax"
    r"|quant_map|perm)$|\.quant_state\."
)
INTEGER_BITS = {"I8": 8, "U8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsTensor:
    """One line of the tensor table; `type_name` as the format writes it ("BF16", "F8_E4M3")."""

    name: str
    size_bytes: int
    elements: int
    dimensions: int
    type_name: str

    @property
    def layer(self) -> int | None:
        """The layer that the tensor belongs to, where it belongs to one."""
        found = LAYER.search(self.name)
        return None if found is None else int(found[1])


def read_header(path: Path) -> bytes:
    """Return the header of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no safetensors file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise ValueError(f"{path.name} is no safetensors file: a header of {length} bytes")
        header = file.read(length)
    if len(header) < length:
        raise ValueError(f"{path.name} ends inside its header")
    return header


def parse_header(header: bytes) -> list[SafetensorsTensor]:
    """Return the tensors that a header lists.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: it is no header.
    """
    return [
        SafetensorsTensor(
            name=name,
            size_bytes=about["data_offsets"][1] - about["data_offsets"][0],
            elements=prod(about["shape"]),
            dimensions=len(about["shape"]),
            type_name=about["dtype"],
        )
        for name, about in orjson.loads(header).items()
        if name != "__metadata__"
    ]


def decoder(tensors: Iterable[SafetensorsTensor], layers: int | None) -> list[SafetensorsTensor]:
    """Return the tensors of the network that writes the next token."""
    return [
        tensor
        for tensor in tensors
        if not NOT_THE_DECODER.search(tensor.name)
        and (layers is None or tensor.layer is None or tensor.layer < layers)
    ]


def read(
    tensors: Sequence[SafetensorsTensor], experts: int | None, used: int | None
) -> list[tuple[SafetensorsTensor, float]] | None:
    """Return the tensors of a decoder read for one token, and which share of each.

    None where experts are not known. The embedding is a look-up, unless it is the output matrix
    too (tied): then it is read once.
    """
    tied = not any(OUTPUT.search(tensor.name) for tensor in tensors)
    found = []
    for tensor in tensors:
        if LOOK_UPS.search(tensor.name) or (EMBEDDING.search(tensor.name) and not tied):
            continue
        ratio = 1.0
        if EXPERTS.search(tensor.name):
            if not experts or not used:
                return None
            ratio = used / experts
        found.append((tensor, ratio))
    return found


def read_bytes(shares: Iterable[tuple[SafetensorsTensor, float]]) -> int:
    """Return the bytes of shares of tensors."""
    return round(sum(tensor.size_bytes * ratio for tensor, ratio in shares))


def parameters(shares: Iterable[tuple[SafetensorsTensor, float]], bits: int | None) -> int | None:
    """Return the number of weights; `bits` of one where several are packed into an integer."""
    count = 0.0
    for tensor, ratio in shares:
        if ADDED.search(tensor.name):
            continue
        integer_bits = INTEGER_BITS.get(tensor.type_name)
        if integer_bits is not None and bits is None:
            return None
        packed = integer_bits // bits if integer_bits and bits else 1
        count += tensor.elements * ratio * packed
    return round(count)


def state_layers(tensors: Iterable[SafetensorsTensor]) -> frozenset[int]:
    """Return the layers that keep a recurrent state."""
    layers = {tensor.layer for tensor in tensors if STATE.match(tensor.name)}
    return frozenset(layer for layer in layers if layer is not None)


def attending_layers(tensors: Iterable[SafetensorsTensor]) -> frozenset[int] | None:
    """Return the layers that keep keys and values; None where no tensor is known as theirs."""
    tensors = list(tensors)
    recurrent = {found[1] for tensor in tensors if (found := STATE.match(tensor.name))}
    layers = {
        tensor.layer
        for tensor in tensors
        if (found := KEYS.match(tensor.name)) and found[1] not in recurrent
    }
    return frozenset(layer for layer in layers if layer is not None) or None


def main_type(tensors: Iterable[SafetensorsTensor]) -> str | None:
    """Return the type that holds most of the bytes."""
    size_of: dict[str, int] = {}
    for tensor in tensors:
        size_of[tensor.type_name] = size_of.get(tensor.type_name, 0) + tensor.size_bytes
    return max(size_of, key=size_of.__getitem__, default=None)
