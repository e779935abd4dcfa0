"""The effect of an engine's options on a model's weights when it loads them.

Sources: vLLM 0.32 and SGLang 0.5.23 (read as sources). Both cast plain weights to one type: their
`auto` takes the config's, and 16 bits for 32-bit checkpoints (`_resolve_auto_dtype` of
vllm/config/model.py, `_get_and_verify_dtype` of sglang/srt/configs/model_config.py).
`--quantization` on a plain checkpoint quantises linear layers and experts while loading; embeddings
and output matrix stay as they are. A checkpoint that is quantised already keeps its format.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slowtok.proxy.engines.models.hf_config import TEXT_CONFIGS
from slowtok.proxy.engines.probing.argv import arguments, dashed, options

# Bits of a weight in linear layers and in experts, scales included; None: they are not quantised.
# vLLM: `_ONLINE_SHORTHANDS` of vllm/config/quantization.py and the methods in
# vllm/model_executor/layers/quantization/online/; `ptpc_fp8` until 0.1x. MX formats have 8 bits of
# scale for 32 weights, NVFP4 has them for 16; other scales are less than 0.4 % of the weights.
VLLM_ONLINE: Mapping[str, tuple[float | None, float | None]] = {
    "fp8": (8, 8), "fp8_per_tensor": (8, 8), "fp8_per_channel": (8, 8), "fp8_per_block": (8, 8),
    "ptpc_fp8": (8, 8), "mxfp8": (8.25, 8.25), "mxfp4": (4.25, 4.25), "experts_int8": (None, 8),
    "int8_per_channel_weight_only": (None, 8), "nvfp4_per_token": (None, 4.5),
}  # fmt: skip
# SGLang: sglang/srt/layers/quantization/{fp8,w8a8_fp8,nvfp4_online}.py.
SGLANG_ONLINE: Mapping[str, tuple[float | None, float | None]] = {
    "fp8": (8, 8), "w8a8_fp8": (8, 8), "mxfp8": (8.25, 8.25), "nvfp4_online": (None, 4.5),
}  # fmt: skip
# These quantise what is quantised already: SGLang's `compatible_quantization_methods` and
# `REQUANTIZATION_METHODS` (model_config.py); humming chooses by variables of its own.
ANEW = frozenset({"nvfp4_online", "minimax_m3_nvfp4", "quark_mxfp4", "humming"})
NOT_QUANTISED = frozenset({"", "none", "unquant"})
WIDE_TYPES = frozenset({"float", "float32"})
# They read the weights as the files have them; `dummy` makes up weights of the same sizes.
PLAIN_FORMATS = frozenset({
    "auto", "hf", "safetensors", "pt", "npcache", "dummy", "mistral", "fastsafetensors",
    "instanttensor", "runai_streamer", "layered",
})  # fmt: skip
# What of a model's config changes no byte of what a token reads.
HARMLESS_OVERRIDES = frozenset({
    "rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings", "architectures",
    "original_max_position_embeddings", "eos_token_id", "pad_token_id", "bos_token_id",
})  # fmt: skip
OVERRIDES = ("--hf-overrides", "--json-model-override-args")
VALUED = {
    "--quantization": "quantisation",
    "-q": "quantisation",
    "--dtype": "dtype",
    "--load-format": "load_format",
    "--quantization-config": "quantisation_config",
    "--torchao-config": "torchao_config",
    "--modelopt-quant": "modelopt_quant",
    "--config": "options_file",
    **dict.fromkeys(OVERRIDES, "overrides"),
}
SHORT = re.compile(r"^-q=?(?=.)")  # `-qfp8` and `-q=fp8` stand for `-q fp8`
MAX_FILE_BYTES = 1 << 16
# Options in a file that would matter, unless they say what is usual.
USUAL_LINE = re.compile(
    r"""(?im)^["']?(dtype["']?\s*:\s*["']?(auto|half|float16|bfloat16)"""
    r"""|kv[-_]cache[-_]dtype["']?\s*:\s*["']?auto"""
    r"""|load[-_]format["']?\s*:\s*["']?(auto|safetensors))["']?\s*(\#.*)?$"""
)
TELLING = re.compile(r"(?i)quantization|dtype|load[-_]format|overrides?|torchao|modelopt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What becomes of weights while they are loaded.

    `plain_bits` is the size of those that are not quantised. `quantisation` is the method asked
    for; of a plain checkpoint it makes `linear_bits` and `expert_bits` of a weight (None: they stay
    plain; both None: not known). `doubt` says why the bytes cannot be told. `options_file` may have
    more options; see `with_options_read`.
    """

    plain_bits: int = 16
    quantisation: str | None = None
    linear_bits: float | None = None
    expert_bits: float | None = None
    doubt: str | None = None
    options_file: str | None = None


AS_IN_THE_FILES = Loading()


def loading_asked(
    argv: Sequence[str], online: Mapping[str, tuple[float | None, float | None]]
) -> Loading:
    """Return what a command line of vLLM or SGLang asks for; `online` is what its methods do."""
    given = options([SHORT.sub("--quantization=", dashed(word)) for word in argv], VALUED, {})
    dotted = [word.partition("=")[0] for word in arguments(argv) if word.startswith("--")]
    return loading(given, online, _dotted_doubts(dotted))


def loading(
    given: Mapping[str, str | None],
    online: Mapping[str, tuple[float | None, float | None]],
    doubts: Iterable[str | None] = (),
) -> Loading:
    """Return the same of options by their names in `VALUED`, as far as they are given."""
    asked = (given.get("quantisation") or "").lower()
    linear_bits, expert_bits = online.get(asked, (None, None))
    found = (
        *doubts,
        _format_doubt(given.get("load_format")),
        _override_doubt(given.get("overrides")),
        _spec_doubt(given.get("quantisation_config")),
        *(
            _doubt(option)
            for option in ("torchao-config", "modelopt-quant")
            if _given(given, option)
        ),
    )
    return Loading(
        plain_bits=32 if (given.get("dtype") or "").lower() in WIDE_TYPES else 16,
        quantisation=None if asked in NOT_QUANTISED else asked,
        linear_bits=linear_bits,
        expert_bits=expert_bits,
        doubt=next((doubt for doubt in found if doubt), None),
        options_file=given.get("options_file"),
    )


def with_options_read(asked: Loading) -> Loading:
    """Return the same with its file of options looked into, if it has one. Asks the file system.

    The file is only searched for the names of options that matter here: one that has none of them
    changes nothing, one that has is as good as one that cannot be read.
    """
    if asked.options_file is None:
        return asked
    path = Path(asked.options_file)
    try:
        if not path.is_absolute() or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return asked
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return asked
    silent = not TELLING.search(USUAL_LINE.sub("", text))
    return replace(asked, options_file=None) if silent else asked


def unknown_because(asked: Loading, *, quantised: bool, bits: int | None) -> str | None:
    """Return why the bytes of loaded weights are not known; None where they are.

    `quantised` says whether the checkpoint is, `bits` to how many.
    """
    if asked.doubt or asked.options_file:
        more = f"--config {asked.options_file}: options in a file that may change the weights"
        return asked.doubt or more
    method = asked.quantisation
    if method is None:
        return None
    if quantised:
        anew = method in ANEW or ("fp4" in method and bits == 8)
        return (
            f"--quantization {method} may quantise the weights anew when loading" if anew else None
        )
    if asked.linear_bits is None and asked.expert_bits is None:
        return f"--quantization {method} changes the weights when loading, by how much is not known"
    return None


def _dotted_doubts(names: Iterable[str]) -> Iterable[str]:
    """Yield which options of the kind `--hf-overrides.key.key` may change the bytes."""
    for name in names:
        option, _, path = name.partition(".")
        if path and not _is_harmless(dashed(option), path.replace("-", "_").split(".")):
            yield _doubt(name.removeprefix("--"))


def _is_harmless(option: str, keys: Sequence[str]) -> bool:
    if option == "--quantization-config":
        return keys[-1] == "activation"
    named = [key for key in keys if key not in TEXT_CONFIGS]
    return option not in OVERRIDES or (bool(named) and named[0] in HARMLESS_OVERRIDES)


def _given(given: Mapping[str, str | None], option: str) -> bool:
    return bool(given.get(option.replace("-", "_")))


def _format_doubt(load_format: str | None) -> str | None:
    plain = load_format is None or load_format.lower() in PLAIN_FORMATS
    return None if plain else _doubt(f"load-format {load_format}")


def _override_doubt(text: str | None) -> str | None:
    """Return the doubt about what overrides the model's config; None where it is harmless."""
    said = _object(text)
    whole = said or {}
    inner = [v for k, v in whole.items() if k in TEXT_CONFIGS and isinstance(v, dict)]
    keys = {key for part in (whole, *inner) for key in part}.difference(TEXT_CONFIGS)
    known = not text or (said is not None and keys <= HARMLESS_OVERRIDES)
    return None if known else _doubt("hf-overrides")


def _spec_doubt(text: str | None) -> str | None:
    """Doubt a specification of vLLM's online quantisation, unless it is of activations alone."""
    said = _object(text)
    activations = said is not None and all(
        kind in {"linear", "moe"} and isinstance(spec, dict) and set(spec) <= {"activation"}
        for kind, spec in said.items()
    )
    return None if not text or activations else _doubt("quantization-config")


def _object(text: str | None) -> dict[str, object] | None:
    try:
        said = json.loads(text or "")
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _doubt(option: str) -> str:
    return f"--{option} may change the size of the weights"
