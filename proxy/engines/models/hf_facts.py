"""Read a model's geometry from a Hugging Face folder and print it as one JSON line.

Strategy: this runs as a process of its own, `python -m slowtok.proxy.engines.models.hf_facts
FOLDER`: the headers of a large model are tens of megabytes of JSON, and its folder may lie on a
slow share.

With a second argument, a `Loading` as JSON, it says what the weights are once they are loaded so.

Exit status 1 and one line on stderr when the folder cannot be read.
"""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.models import hf_config, safetensors_facts
from slowtok.proxy.engines.models.facts_process import print_facts
from slowtok.proxy.engines.models.hf_config import Config
from slowtok.proxy.engines.models.loading import AS_IN_THE_FILES, Loading, unknown_because
from slowtok.proxy.engines.models.safetensors_facts import (
    ADDED,
    EMBEDDING,
    EXPERTS,
    LOOK_UPS,
    OUTPUT,
    ROUTER,
    SafetensorsTensor,
)

INDEX = "model.safetensors.index.json"
# A second copy of the weights in Mistral's own layout; loaders of this format pass it over.
SECOND_COPY = "consolidated"

PLAIN = frozenset({"F64", "F32", "F16", "BF16"})
NO_WEIGHTS = frozenset({"BOOL", "I64"})


def read(folder: Path, loading: Loading = AS_IN_THE_FILES) -> ModelFacts:
    """Return the geometry of the model in `folder`, its weights loaded as `loading` says.

    Without safetensors files it says what the config alone does. `digest` is the SHA-256 of the
    config, the headers and the file sizes, and of `loading` where that asks for something.

    Raises:
        OSError, ValueError, KeyError, TypeError: not a folder of this kind.
    """
    written = (folder / hf_config.FILE_NAME).read_bytes()
    config = orjson.loads(written)
    paths = weight_files(folder)
    headers = [safetensors_facts.read_header(path) for path in paths]
    sizes = [path.stat().st_size for path in paths]
    digest = hashlib.sha256(written)
    for header in headers:
        digest.update(header)
    digest.update(repr(sizes).encode())
    if loading != AS_IN_THE_FILES:
        digest.update(orjson.dumps(loading))
    tensors = [t for header in headers for t in safetensors_facts.parse_header(header)]
    facts = model_facts(config, tensors, sum(sizes), loading)
    return replace(facts, path=str(folder), digest=digest.hexdigest())


def trained_context_tokens(folder: Path) -> int | None:
    """Return the longest context that the model was trained for. Raises as `read`."""
    config = hf_config.text_config(orjson.loads((folder / hf_config.FILE_NAME).read_bytes()))
    tokens = config.get("max_position_embeddings")
    return tokens if isinstance(tokens, int) else None


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the weights: those that the index names, else all there are."""
    try:
        index = orjson.loads((folder / INDEX).read_bytes())
    except FileNotFoundError:
        found = sorted(folder.glob("*.safetensors"))
        first_copy = [path for path in found if not path.name.startswith(SECOND_COPY)]
        return first_copy or found
    return [folder / name for name in sorted(set(index["weight_map"].values()))]


def model_facts(
    whole: Config, stored: Sequence[SafetensorsTensor], file_bytes: int, loading: Loading
) -> ModelFacts:
    """Return the facts that follow from the config and the tensor table."""
    config = hf_config.text_config(whole)
    layers = hf_config.layer_count(config)
    experts, used = hf_config.experts(config)
    method, bits = hf_config.quantisation(config)
    quantised = method is not None or is_quantised(stored)
    tensors = as_loaded(stored, loading, quantised=quantised)
    decoder = safetensors_facts.decoder(tensors, layers)
    kv = hf_config.kv_bytes(config, safetensors_facts.attending_layers(decoder))
    whole_tensors = [(tensor, 1.0) for tensor in tensors]
    parameters = safetensors_facts.parameters(whole_tensors, bits) if tensors else None
    states = safetensors_facts.state_layers(decoder)
    read = safetensors_facts.read(decoder, experts, used) if decoder else None
    stored_bytes, loaded_bytes = (sum(t.size_bytes for t in each) for each in (stored, tensors))
    online = None if quantised or loading.quantisation is None else loading.quantisation.upper()
    facts = ModelFacts(
        quantisation=online or method or safetensors_facts.main_type(stored),
        parameters=parameters,
        file_bytes=file_bytes + loaded_bytes - stored_bytes or None,
        read_bytes=None if read is None else safetensors_facts.read_bytes(read),
        layers=layers,
        experts=experts,
        experts_used=used,
        kv_bytes_per_token=None if kv is None else kv.growing,
        kv_window_tokens=None if kv is None else kv.window_tokens,
        kv_window_bytes_per_token=None if kv is None else kv.windowed,
        bits_per_weight=loaded_bytes * 8 / parameters if parameters else None,
        state_bytes=hf_config.state_bytes(config, len(states)) if decoder else None,
        active_parameters=None if read is None else safetensors_facts.parameters(read, bits),
    )
    why = unknown_because(loading, quantised=quantised, bits=bits)
    return facts if why is None else _without_bytes(facts, why)


def _without_bytes(facts: ModelFacts, why: str) -> ModelFacts:
    """Return the facts without the sizes that the engine's options hide."""
    return replace(facts, bytes_unknown=why, read_bytes=None, file_bytes=None, bits_per_weight=None)


def main(argv: list[str]) -> int:
    """Print the facts of the folder named in `argv`."""
    *path, said = argv if len(argv) == 2 else (*argv, "{}")
    loading = Loading(**orjson.loads(said))
    return print_facts(path, partial(read, loading=loading), "hf_facts FOLDER [LOADING]")


def is_quantised(tensors: Iterable[SafetensorsTensor]) -> bool:
    """Return True if any matrix of a checkpoint is; masks and positions beside them are none."""
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
