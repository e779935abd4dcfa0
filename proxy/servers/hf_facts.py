"""Read a model's geometry from a Hugging Face folder and print it as one JSON line.

Strategy: this runs as a process of its own (`python -m slowtok.proxy.servers.hf_facts FOLDER`): the
headers of a large model are tens of megabytes of JSON, and its folder may lie on a slow share.

Exit status 1 and one line on stderr when the folder cannot be read.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from slowtok.detectors.engine import ModelFacts
from slowtok.proxy.servers import hf_config, safetensors_facts
from slowtok.proxy.servers.facts_process import print_facts
from slowtok.proxy.servers.hf_config import Config
from slowtok.proxy.servers.safetensors_facts import Tensor

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
# A second copy of the weights in Mistral's own layout; loaders of this format pass it over.
SECOND_COPY = "consolidated"
# Checkpoints of 32-bit floats are loaded with 16 unless the engine is told otherwise.
LOADED_BITS = {"float32": 16}


def read(folder: Path) -> ModelFacts:
    """Return the geometry of the model in `folder`.

    Without safetensors files it says what the config alone does. `digest` is the SHA-256 of the
    config, the headers and the file sizes.

    Raises:
        OSError, ValueError, KeyError, TypeError: not a folder of this kind.
    """
    written = (folder / CONFIG).read_bytes()
    config = orjson.loads(written)
    paths = weight_files(folder)
    headers = [safetensors_facts.read_header(path) for path in paths]
    sizes = [path.stat().st_size for path in paths]
    digest = hashlib.sha256(written)
    for header in headers:
        digest.update(header)
    digest.update(repr(sizes).encode())
    tensors = [t for header in headers for t in safetensors_facts.parse_header(header)]
    return model_facts(folder, config, tensors, sum(sizes), digest.hexdigest())


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
    folder: Path, whole: Config, tensors: Sequence[Tensor], file_bytes: int, digest: str
) -> ModelFacts:
    """Return the facts that follow from the config and the tensor table."""
    config = hf_config.text_config(whole)
    layers = hf_config.layer_count(config)
    experts, used = hf_config.experts(config)
    quantisation, bits = hf_config.quantisation(config)
    decoder = safetensors_facts.decoder(tensors, layers)
    kv = hf_config.kv_bytes(config, safetensors_facts.attending_layers(decoder))
    loaded_bits = LOADED_BITS.get(str(config.get("dtype") or config.get("torch_dtype")))
    whole_tensors = [(tensor, 1.0) for tensor in tensors]
    parameters = safetensors_facts.parameters(whole_tensors, bits) if tensors else None
    states = safetensors_facts.state_layers(decoder)
    read = safetensors_facts.read(decoder, experts, used) if decoder else None
    total_bytes = sum(tensor.size_bytes for tensor in tensors)
    return ModelFacts(
        path=str(folder),
        digest=digest,
        quantisation=quantisation or safetensors_facts.main_type(tensors),
        parameters=parameters,
        file_bytes=file_bytes or None,
        read_bytes=None if read is None else safetensors_facts.read_bytes(read, loaded_bits),
        layers=layers,
        experts=experts,
        experts_used=used,
        kv_bytes_per_token=None if kv is None else kv.growing,
        kv_window_tokens=None if kv is None else kv.window_tokens,
        kv_window_bytes_per_token=None if kv is None else kv.windowed,
        bits_per_weight=total_bytes * 8 / parameters if parameters else None,
        state_bytes=hf_config.state_bytes(config, len(states)) if decoder else None,
        active_parameters=None if read is None else safetensors_facts.parameters(read, bits),
    )


def main(argv: list[str]) -> int:
    """Print the facts of the folder named in `argv`."""
    return print_facts(argv, read, "hf_facts FOLDER")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
