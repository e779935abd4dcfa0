"""Read a model's geometry from its GGUF file and print it as one JSON line.

Strategy: this runs as a process of its own, `python -m slowtok.proxy.engines.models.gguf_facts
FILE`, because numpy and gguf cost memory that the proxy would keep for ever. Only the header is
read: metadata and tensor table, never a weight.

Exit status 1 and one line on stderr when the file cannot be read.
"""

import hashlib
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader, LlamaFileType, ReaderField
from gguf.constants import GGUFValueType

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.models.facts_process import print_facts
from slowtok.proxy.engines.models.kv_geometry import kv_bytes, state_bytes

# Tensors that a generated token never reads: images, sound, and the encoder of a T5.
NOT_THE_DECODER = re.compile(r"(v|mm|a|resampler|enc)\.")
# Look-ups: one row is read, not the table.
LOOK_UPS = frozenset({"per_layer_token_embd.weight", "position_embd.weight", "token_types.weight"})
EXPERTS = re.compile(r"_(ch)?exps(\.|$)")
BLOCK = re.compile(r"blk\.(\d+)\.")
OF_A_STATE = re.compile(r"ssm_|shortconv\.|time_mix_")
SHARD = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One line of the tensor table."""

    name: str
    size_bytes: int
    elements: int
    type_name: str

    @property
    def layer(self) -> int | None:
        """The block that the tensor belongs to, where it belongs to one."""
        found = BLOCK.match(self.name)
        return None if found is None else int(found[1])


class HeaderReader(GGUFReader):
    """gguf's reader, except that arrays are taken or passed over whole.

    Upstream makes two numpy objects for each word of the vocabulary: 2.1 s and 160 MiB for 49,152
    words. Should a later gguf not call this method any more, reading is slow again, not wrong.
    """

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_number, count = struct.unpack_from("<IQ", self.data.data, orig_offs)
        item = GGUFValueType(item_number)
        if self.byte_order == "S" or item == GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        begin, types = orig_offs + 12, [GGUFValueType.ARRAY, item]
        if item == GGUFValueType.STRING:
            return self._past_strings(begin, count) - orig_offs, [], [], types
        values = self._get(begin, self.gguf_scalar_to_np[item], count)
        return 12 + int(values.nbytes), [values], [0], types

    def _past_strings(self, offset: int, count: int) -> int:
        whole = self.data.data
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            offset += 8 + length_at(whole, offset)[0]
        return offset


def read(path: Path) -> ModelFacts:
    """Return the geometry of the model in `path`, whose shards are summed.

    `digest` is the SHA-256 of everything before the weights (metadata, vocabulary, tensor table) of
    the first shard and the file sizes: it tells models and quantisations apart, not two trainings
    of one network that carry the same name.

    Raises:
        OSError, ValueError, KeyError: not a GGUF file that this gguf understands.
    """
    paths = shards(path)
    readers = [HeaderReader(shard) for shard in paths]
    field = _fields(readers[0].fields)
    tensors = [
        GgufTensor(
            name=tensor.name,
            size_bytes=int(tensor.n_bytes),
            elements=int(tensor.n_elements),
            type_name=tensor.tensor_type.name,
        )
        for reader in readers
        for tensor in reader.tensors
    ]
    sizes = [shard.stat().st_size for shard in paths]
    header = readers[0].data[: readers[0].data_offset].tobytes()
    digest = hashlib.sha256(header + repr(sizes).encode()).hexdigest()
    return model_facts(path, field, tensors, sum(sizes), digest)


def trained_context_tokens(path: Path) -> int | None:
    """Return the longest context that the model was trained for. Raises as `read`."""
    tokens: int | None = _fields(HeaderReader(shards(path)[0]).fields)("{arch}.context_length")
    return tokens


def shards(path: Path) -> list[Path]:
    """Return the files of a model: itself, or all parts of a split one given by its first."""
    found = SHARD.fullmatch(path.name)
    if found is None:
        return [path]
    stem, count = found[1], found[2]
    return [
        path.with_name(f"{stem}-{part:05}-of-{count}.gguf") for part in range(1, int(count) + 1)
    ]


def model_facts(
    path: Path,
    field: Callable[[str], Any],
    tensors: list[GgufTensor],
    file_bytes: int,
    digest: str,
) -> ModelFacts:
    """Return the facts that follow from metadata (`field(key)`) and the tensor table."""
    blocks = field("{arch}.block_count")
    layers = None if blocks is None else blocks - (field("{arch}.nextn_predict_layers") or 0)
    total_bytes = sum(tensor.size_bytes for tensor in tensors)
    parameters = sum(tensor.elements for tensor in tensors)
    experts, used = field("{arch}.expert_count"), field("{arch}.expert_used_count")
    states, recurrent = _state_layers(tensors)
    kv = None if layers is None else kv_bytes(field, layers, recurrent)
    read = list(_read(tensors, layers, experts, used))
    return ModelFacts(
        name=field("general.name") or field("general.basename"),
        path=str(path),
        digest=digest,
        quantisation=_quantisation(field("general.file_type"), tensors),
        parameters=parameters,
        file_bytes=file_bytes,
        read_bytes=round(sum(tensor.size_bytes * ratio for tensor, ratio in read)),
        layers=layers,
        experts=experts or None,
        experts_used=used or None,
        kv_bytes_per_token=None if kv is None else kv.growing,
        kv_window_tokens=None if kv is None else kv.window_tokens,
        kv_window_bytes_per_token=None if kv is None else kv.windowed,
        bits_per_weight=total_bytes * 8 / parameters if parameters else None,
        state_bytes=state_bytes(field, len(states)),
        active_parameters=round(sum(tensor.elements * ratio for tensor, ratio in read)),
    )


def _read(
    tensors: Sequence[GgufTensor], layers: int | None, experts: int | None, used: int | None
) -> Iterator[tuple[GgufTensor, float]]:
    """Yield the tensors read for one token, and which share of each.

    The embedding table is a look-up, unless it is also the output matrix (tied): then it is read
    once. Blocks past `layers` predict further tokens and rest in plain decoding.
    """
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    used_ratio = used / experts if experts and used else 1.0
    for tensor in tensors:
        if NOT_THE_DECODER.match(tensor.name) or tensor.name in LOOK_UPS:
            continue
        if tensor.name == "token_embd.weight" and not tied:
            continue
        if layers is not None and tensor.layer is not None and tensor.layer >= layers:
            continue
        yield tensor, used_ratio if EXPERTS.search(tensor.name) else 1.0


def _state_layers(tensors: Iterable[GgufTensor]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the blocks that keep a state, and those of them that keep no keys and values."""
    names: dict[int, set[str]] = {}
    for tensor in tensors:
        if tensor.layer is not None:
            names.setdefault(tensor.layer, set()).add(tensor.name.split(".", 2)[2])
    states = {layer for layer, parts in names.items() if any(map(OF_A_STATE.match, parts))}
    without_keys = {layer for layer in states if "attn_k.weight" not in names[layer]}
    return frozenset(states), frozenset(without_keys)


def _quantisation(file_type: int | None, tensors: Iterable[GgufTensor]) -> str | None:
    """Return the file's own name for its mix, else the type that holds most of its bytes."""
    try:
        name = LlamaFileType(-1 if file_type is None else file_type).name
    except ValueError:
        size_of: dict[str, int] = {}
        for tensor in tensors:
            size_of[tensor.type_name] = size_of.get(tensor.type_name, 0) + tensor.size_bytes
        return max(size_of, key=size_of.__getitem__, default=None)
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def _fields(fields: Mapping[str, ReaderField]) -> Callable[[str], Any]:
    """Return a look-up of metadata in which `{arch}` stands for the model's architecture."""

    def value(key: str) -> Any:
        found = fields.get(key)
        return None if found is None else found.contents()

    arch = value("general.architecture")
    return lambda key: arch if key == "general.architecture" else value(key.format(arch=arch))


def main(argv: list[str]) -> int:
    """Print the facts of the file named in `argv`."""
    return print_facts(argv, read, "gguf_facts FILE")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
