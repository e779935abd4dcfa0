"""Names of models and GPUs as people write them: as shops, Ollama and Hugging Face do. Pure."""

import re
from dataclasses import dataclass

from slowtok.config.hardware import Card, card_called, card_meant, find_gpu
from slowtok.config.models import (
    KnownModel,
    find_model,
    known_models,
    longest_held,
    name_words,
)
from slowtok.detectors.expectation.footprint import GIB

SOLD_AS = {
    "dgx spark": "NVIDIA GB10",
    "dgx spark 128gb": "NVIDIA GB10",
    "nvidia dgx spark": "NVIDIA GB10",
    "strix halo": "AMD Radeon 8060S",
    "ryzen ai max+ 395": "AMD Radeon 8060S",
    **{f"m3 max {gb}gb": f"Apple M3 Max (30-core) {gb}GB" for gb in (36, 96)},
    **{f"m3 max {gb}gb": f"Apple M3 Max (40-core) {gb}GB" for gb in (48, 64, 128)},
    "m4 max 36gb": "Apple M4 Max (32-core) 36GB",
    **{f"m4 max {gb}gb": f"Apple M4 Max (40-core) {gb}GB" for gb in (48, 64, 128)},
}
"""Machines and processors by the name that they are sold under, with the name of their GPU. Which
of its two GPUs a Max chip has goes by the memory (technical specifications of the MacBook Pro of
2023 and 2024, support.apple.com)."""

SHAPED_LIKE = {
    "deepseek-r1-1-5b": "Qwen2.5-1.5B",
    "deepseek-r1-7b": "Qwen2.5-7B",
    "deepseek-r1-8b": "Qwen3-8B",
    "deepseek-r1-14b": "Qwen2.5-14B",
    "deepseek-r1-32b": "Qwen2.5-32B",
    "deepseek-r1-70b": "Llama-3-70B",
    "deepseek-r1-671b": "DeepSeek-V3-671B",
    "deepseek-r1-distill-qwen-1-5b": "Qwen2.5-1.5B",
    "deepseek-r1-distill-qwen-7b": "Qwen2.5-7B",
    "deepseek-r1-distill-qwen-14b": "Qwen2.5-14B",
    "deepseek-r1-distill-qwen-32b": "Qwen2.5-32B",
    "deepseek-r1-distill-llama-8b": "Llama-3-8B",
    "deepseek-r1-distill-llama-70b": "Llama-3-70B",
    "deepseek-v3-1": "DeepSeek-V3-671B",
    "devstral": "Mistral-Small-24B",
    "devstral-2": "Devstral-2-123B",
    "devstral-small-2": "Mistral-Small-24B",
    "glm-4-7": "GLM-4.6-355B",
    "glm-4-7-flash": "GLM-4.7-Flash",
    "granite3-1-dense-8b": "Granite-3.1-8B",
    "granite3-2-8b": "Granite-3.1-8B",
    "granite3-3-8b": "Granite-3.1-8B",
    "granite-3-2-8b": "Granite-3.1-8B",
    "granite-3-3-8b": "Granite-3.1-8B",
    "magistral": "Mistral-Small-24B",
    "mistral-small3-1": "Mistral-Small-24B",
    "mistral-small3-2": "Mistral-Small-24B",
    "mistral-small-3-1": "Mistral-Small-24B",
    "mistral-small-3-2": "Mistral-Small-24B",
    "qwen2-5vl-3b": "Qwen2.5-3B",
    "qwen2-5vl-7b": "Qwen2.5-7B",
    "qwen2-5vl-32b": "Qwen2.5-32B",
    "qwen2-5vl-72b": "Qwen2.5-72B",
    "qwen3-coder-30b": "Qwen3-30B-A3B",
    "qwen3-vl-30b": "Qwen3-30B-A3B",
    "qwen3-6-27b": "Qwen3.5-27B",
    "qwen3-6-35b": "Qwen3.5-35B-A3B",
    "qwq-32b": "Qwen2.5-32B",
    "qwq": "Qwen2.5-32B",
}
"""Models with the shape of one in the table: those that go by the name of what taught them
(https://huggingface.co/deepseek-ai/DeepSeek-R1, and -0528 for 8b), and later versions, whose
config.json says the same as their base's. The longest that a name holds counts."""

OLLAMA_DEFAULT_SIZES = {
    "deepseek-r1": "8b", "deepseek-v3-1": "671b", "devstral": "24b", "gemma2": "9b",
    "gemma3": "4b", "gemma4": "e4b", "gpt-oss": "20b", "granite3-3": "8b", "llama2": "7b",
    "llama3": "8b", "llama3-1": "8b", "llama3-2": "3b", "llama3-3": "70b", "llama4": "scout",
    "magistral": "24b", "mistral": "7b", "mistral-nemo": "12b", "mistral-small": "24b",
    "mistral-small3-1": "24b", "mistral-small3-2": "24b", "mixtral": "8x7b", "phi3": "mini",
    "phi4": "14b", "qwen2-5": "7b", "qwen2-5-coder": "7b", "qwen2-5vl": "7b", "qwen3": "8b",
    "qwen3-5": "9b", "qwen3-coder": "30b", "qwen3-vl": "8b", "qwq": "32b", "smollm2": "1.7b",
}  # fmt: skip
"""The tag that `latest` means in Ollama's library (https://ollama.com/library)."""

_ON_HUGGING_FACE = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)
_MACHINE = re.compile(
    r"(?:apple\s+)?(?:mac\s*mini|mac\s*studio|mac\s*pro|macbook(?:\s+(?:pro|air))?|imac)\s+",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r"(\d{1,2})\s*x\s*(.+)", re.IGNORECASE)  # "2 x RTX 3090", no "7900 XTX"
_MEMORY = re.compile(r"[\s(]*(\d{1,3})\s*(?:gb|gib|g)\)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedGpu:
    """What the name of a GPU means: the card's own name, and what the shop's says beside it.

    `other_memory_gib` is the memory where it is not that of the card in the table, and of that
    card then `own_gib`; with `is_unified`, machines are sold with more or less of the same.
    """

    name: str
    count: int | None = None
    other_memory_gib: float | None = None
    own_gib: int | None = None
    is_unified: bool = False


def as_typed_at_hugging_face(model: str) -> str:
    """Return a name without the address that Ollama and others put before it."""
    return _ON_HUGGING_FACE.sub("", model, count=1)


def published_name(model: str | None) -> str | None:
    """Return the name in the table of published models whose shape a model has; else its own."""
    if model is None:
        return None
    if base := shaped_like(model):
        return base
    if find_model(model) is None and (only := _only_one_begun_so(model)):
        return only.name
    return model


def shaped_like(model: str) -> str | None:
    """Return the published model whose shape another one has; None where it has its own."""
    longest = longest_held(squeezed(model), SHAPED_LIKE, between="-")
    return None if longest is None else SHAPED_LIKE[longest]


def size_of_latest(model: str) -> str | None:
    """Return the size that the bare name of a family means; None where it is none."""
    return OLLAMA_DEFAULT_SIZES.get(squeezed(model.removesuffix(":latest")))


def squeezed(name: str) -> str:
    """Return a name in small letters, its words with a hyphen between."""
    return re.sub(r"[^a-z\d]+", "-", name.lower())


def gpu_named(text: str) -> NamedGpu:
    """Return what a shop, a maker or a user means by the name of a GPU or of a machine with one."""
    several = _SEVERAL.fullmatch(text.strip())
    count, text = (int(several[1]), several[2]) if several else (None, text.strip())
    text = _MACHINE.sub("", text, count=1)
    gpu = SOLD_AS.get(re.sub(r"\s+(?=gb$)", "", text.casefold().removeprefix("apple ")), text)
    if (card := _card(gpu)) is not None:
        return NamedGpu(name=card.name, count=count)
    sold = _MEMORY.search(gpu)
    card = _card(gpu[: sold.start()]) if sold else None
    if sold is None or card is None or not card.memory_bytes:
        return NamedGpu(name=gpu, count=count)
    return _with_memory(card, float(sold[1]), count)


def _card(text: str) -> Card | None:
    return card_called(text) or card_meant(text)


def _with_memory(card: Card, size_gib: float, count: int | None) -> NamedGpu:
    own = round((card.memory_bytes or 0) / GIB)
    if size_gib == own:
        return NamedGpu(name=card.name, count=count)
    spec = find_gpu(card.name)
    return NamedGpu(
        name=card.name,
        count=count,
        other_memory_gib=size_gib,
        own_gib=own,
        is_unified=spec is not None and spec.unified,
    )


def _only_one_begun_so(model: str) -> KnownModel | None:
    """Return the published model whose name begins with these words, where it is only one.

    Words that are in no such name (`it`, `instruct`, `gguf`) say nothing about the shape.
    """
    known = {name_words(one.name): one for one in known_models()}
    vocabulary = {word for words in known for word in words}
    begun = tuple(word for word in name_words(model.rpartition("/")[2]) if word in vocabulary)
    found = [one for words, one in known.items() if begun and words[: len(begun)] == begun]
    return found[0] if len(found) == 1 else None
