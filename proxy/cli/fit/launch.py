"""The commands that start the model as it was asked about, in each engine that can. Pure.

The context is the one that was asked for, else the longest of the table that fits. A name in
capitals stands for what only the user knows: the file, or the publisher on Hugging Face.

Sources: `llama-server --help`; Ollama's FAQ (docs/faq.mdx: context length, KV cache type); vLLM's
`vllm serve --help`. vLLM calls its own support of GGUF experimental: it is offered for other types
only.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slowtok.config.models import find_model
from slowtok.detectors.case.machine import GpuFacts
from slowtok.detectors.expectation.memory import spec_of
from slowtok.proxy.cli.fit.asked import OLLAMA_NAME, FitOptions, Question
from slowtok.proxy.cli.fit.names import published_name, shaped_like
from slowtok.proxy.cli.fit.table import Cell, Row
from slowtok.proxy.engines.probing.facts import ALL_LAYERS

GGUF_KV_TYPES = frozenset({"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "bf16", "f32"})
OLLAMA_KV_TYPES = frozenset({"q8_0", "q4_0"})
VLLM_TYPES = ("BF16", "F16", "MXFP4", "NVFP4", "FP8", "AWQ", "GPTQ")
UNIFIED_VLLM_RATIO = 0.85
"""What vLLM may have of a memory that it shares with the system: with its own default it does not
start on GB10 (vllm-project/recipes#632)."""

PUBLISHED_BY = (
    (re.compile(r"gpt-oss-\d+b"), "openai"),
    (re.compile(r"Qwen3-[\d.]+B(-A\d+B)?"), "Qwen"),
)
"""Whose models are on Hugging Face under the very name that config/models.csv has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How one engine is started: the lines to copy, with the type of weights and the context."""

    engine: str
    quantisation: str | None
    context_tokens: int
    lines: tuple[str, ...]


def launches(question: Question, rows: tuple[Row, ...]) -> tuple[Launch, ...]:
    """Return how to start it in each engine; one that cannot run it is left out."""
    own = next(row for row in rows if row.facts is question.facts)
    cell = _asked_cell(own, question) or own.cells[0]
    found = [
        ("llama-server", own, cell, _llama_server(question, cell)),
        ("Ollama", own, cell, _ollama(question, cell)),
    ]
    if served := _for_vllm(question, rows):
        found.append(("vLLM", *served, _vllm(question, served[1])))
    return tuple(
        Launch(
            engine=engine,
            quantisation=row.facts.model.quantisation,
            context_tokens=at.context_tokens,
            lines=tuple(lines),
        )
        for engine, row, at, lines in found
        if lines
    )


def launches_json(found: tuple[Launch, ...]) -> list[dict[str, Any]]:
    """Return them as JSON."""
    return [
        {
            "engine": each.engine,
            "quantisation": each.quantisation,
            "context_tokens": each.context_tokens,
            "command": "\n".join(each.lines),
        }
        for each in found
    ]


def _asked_cell(row: Row, question: Question) -> Cell | None:
    """Return the cell at the context asked for, else the longest that fits, if any does."""
    if question.asked.context is None:
        return row.largest_fitting
    within = (cell for cell in row.cells if cell.context_tokens >= question.context_tokens)
    return next(within, row.cells[-1])


def _llama_server(question: Question, cell: Cell) -> list[str]:
    asked = question.asked
    if asked.model is not None and Path(asked.model).expanduser().is_dir():
        return []
    told = cell.found.gpu_layers
    layers = ALL_LAYERS if told is None else min(told, ALL_LAYERS)
    options = [f"-c {cell.context_tokens}", f"-ngl {layers if question.facts.device.gpus else 0}"]
    if asked.cpu_moe_layers:
        options.append(f"--n-cpu-moe {asked.cpu_moe_layers}")
    kv_type = (asked.kv_type or "").lower()
    if kv_type in GGUF_KV_TYPES:
        options.append(f"-ctk {kv_type} -ctv {kv_type}")
    return [f"llama-server -m {shlex.quote(_file(question))} \\", f"  {' '.join(options)}"]


def _file(question: Question) -> str:
    """Return the file that was named, else a name in the way that files are mostly named."""
    name, type_ = question.asked.model, question.facts.model.quantisation
    if name is None:
        return "MODEL.gguf"
    if name.endswith(".gguf"):
        return name
    words = re.sub(r"[^\w.-]+", "-", name.rpartition("/")[2])
    is_told = not type_ or type_.lower() in words.lower()
    return f"{words}.gguf" if is_told else f"{words}-{type_}.gguf"


def _ollama(question: Question, cell: Cell) -> list[str]:
    asked = question.asked
    name = OLLAMA_NAME.fullmatch(asked.model or "")
    if name is None or asked.quant or asked.weights or Path(name[0]).exists():
        return []
    context = f"OLLAMA_CONTEXT_LENGTH={cell.context_tokens}"
    kv_type = (asked.kv_type or "").lower()
    serve = [f"{context} ollama serve"]
    if kv_type in OLLAMA_KV_TYPES:
        serve = [
            f"{context} OLLAMA_FLASH_ATTENTION=1 \\",
            f"  OLLAMA_KV_CACHE_TYPE={kv_type} ollama serve",
        ]
    return [*serve, f"ollama run {name[0]}"]


def _for_vllm(question: Question, rows: tuple[Row, ...]) -> tuple[Row, Cell] | None:
    """Return what vLLM would run, where all of it fits: it puts nothing in RAM."""
    gpus = question.facts.device.gpus or ()
    if not gpus or spec_of(gpus[0]).maker == "apple":
        return None
    row = next((row for row in rows if _is_for_vllm(row.facts.model.quantisation)), None)
    cell = None if row is None else _asked_cell(row, question)
    return (row, cell) if row and cell and _fits_vllm(cell, gpus) else None


def _fits_vllm(cell: Cell, gpus: Sequence[GpuFacts]) -> bool:
    """Return True if it fits into the memory that vLLM may have."""
    needed, room = cell.found.footprint, cell.found.room_bytes
    ratio = UNIFIED_VLLM_RATIO if spec_of(gpus[0]).unified else 1.0
    return needed is not None and room is not None and needed.fits(ratio * room) is True


def _vllm(question: Question, cell: Cell) -> list[str]:
    gpus = question.facts.device.gpus or ()
    options = [f"--max-model-len {cell.context_tokens}"]
    if len(gpus) > 1:
        options.append(f"--tensor-parallel-size {len(gpus)}")
    if (question.asked.kv_type or "").lower().startswith("fp8"):
        options.append("--kv-cache-dtype fp8")
    name = shlex.quote(_on_hugging_face(question.asked))
    lines = [f"vllm serve {name} \\", f"  {' '.join(options)}"]
    if gpus and spec_of(gpus[0]).unified:
        lines = [lines[0], f"{lines[1]} \\", f"  --gpu-memory-utilization {UNIFIED_VLLM_RATIO}"]
    return lines


def _is_for_vllm(quantisation: str | None) -> bool:
    return any(word in (quantisation or "").upper() for word in VLLM_TYPES)


def _on_hugging_face(asked: FitOptions) -> str:
    """Return the model's name on Hugging Face, or its folder; `ORG/NAME` where it is not known."""
    name = asked.model or ""
    if name and Path(name).expanduser().is_dir():
        return name
    known = None if shaped_like(name) else find_model(published_name(name))
    own = known.name if known else ""
    by = next((org for pattern, org in PUBLISHED_BY if pattern.fullmatch(own)), None)
    return f"{by}/{own}" if by else "ORG/NAME"
