from dataclasses import replace

import pytest

from fakes.cases import with_envelope, with_server, with_tokens
from fakes.cause_tests import fires, found, lacks, quiet
from fakes.gpu_cases import DEVICE, GIB, SERVER, gpu_case, with_model
from fakes.memory_cases import (
    QWEN_7B,
    RTX_4060,
    SPLIT_HOST,
    card,
    memory_untold,
    model_too_big,
    ollama,
    partial_offload,
    reload_degradation,
    vram_held_by_others,
)
from fakes.memory_cases import context_oversized as firing
from slowtok.detectors.case.case import Case, Neighbours
from slowtok.detectors.case.engine import ServerFacts
from slowtok.detectors.causes.memory import context_oversized

SMALL_GPU = replace(DEVICE, gpus=(RTX_4060,))


def llama_server(**server: object) -> Case:
    """The same 8 GB card with a llama-server that reserves 65,536 tokens; computed."""
    facts = replace(SERVER, gpu_layers=-1, context_tokens=65_536)
    return gpu_case(
        ms_per_token=75.0,
        completion=300,
        model=QWEN_7B,
        server=replace(facts, **server),  # type: ignore[arg-type]
        device=SMALL_GPU,
        gpu=card(6_500, total=8 * GIB),
        host=SPLIT_HOST,
    )


def all_on_cpu() -> Case:
    """ollama/ollama#7198: with 128,000 tokens the model is 100 % on the CPU.

    Model, card and rate are inferred.
    """
    return gpu_case(
        ms_per_token=200.0,
        completion=200,
        model=QWEN_7B,
        server=replace(ollama(131_072, loaded=14.1, on_gpu=0.0), gpu_indices=()),
        device=SMALL_GPU,
        gpu=card(0, total=8 * GIB, busy_ratio=0.0),
        host=SPLIT_HOST,
    )


VLLM: ServerFacts = replace(
    SERVER, kind="vllm", gpu_layers=None, kv_cache_tokens=300_000, gpu_memory_ratio=0.9
)

QUIET = [
    pytest.param(
        gpu_case(server=replace(SERVER, context_tokens=131_072)),
        id="a large context that is wholly on the GPU",
    ),
    pytest.param(gpu_case(server=VLLM, gpu=card(22_000)), id="vLLM fills the GPU with KV cache"),
    pytest.param(
        with_tokens(firing(), prompt=64_000, completion=600),
        id="the context is used: the model is too big for it",
    ),
    pytest.param(
        replace(firing(), neighbours=Neighbours(in_flight_at_send=70, decode_max=70)),
        id="used by many at once",
    ),
    pytest.param(model_too_big(), id="it would not fit with less context either"),
    pytest.param(vram_held_by_others(), id="it would fit without the others"),
    pytest.param(reload_degradation(), id="it did fit"),
    pytest.param(partial_offload(), id="it fits"),
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
]

FIRING = [
    pytest.param(
        firing(),
        22.2,
        "reserved for 65,536 tokens of context, and 900 were used",
        "Set num_ctx to 16384",
        id="clicky-windows#18: 8 GB, 65,536 tokens, 35 % / 65 %",
    ),
    pytest.param(
        llama_server(),
        16.6,
        "so 24 % of what each token reads",
        "-ctk q8_0 -ctv q8_0 with -fa on), which frees 1.6 GiB",
        id="llama-server, by the memory it holds",
    ),
    pytest.param(
        llama_server(context_tokens=16_384, slots=4, kv_cache_tokens=65_536),
        16.6,
        "65,536 tokens",
        "-np 1 instead of 4 slots",
        id="four slots with a context each",
    ),
    pytest.param(
        all_on_cpu(),
        35.8,
        "all of what each token reads",
        "num_ctx",
        id="ollama#7198: all on the CPU",
    ),
]

MISSING = [
    pytest.param(
        memory_untold(),
        "GPU memory of the server",
        id="neither the engine nor the driver tells",
    ),
    pytest.param(with_model(firing(), file_bytes=None), "size of the model file", id="no size"),
    pytest.param(
        with_envelope(firing(), read_bytes=None, kv_bytes=None),
        "bytes read per token",
        id="no bytes per token",
    ),
]


test_quiet = quiet(context_oversized, QUIET)
test_fires = fires(context_oversized, "lost_s summary remedy", FIRING, phase="decode", rel=0.03)
test_names_the_missing_fact = lacks(context_oversized, MISSING)


def test_the_context_that_is_advised_holds_what_was_used() -> None:
    finding = found(context_oversized, with_tokens(firing(), prompt=16_000, completion=300))

    assert "num_ctx to 16384" in finding.remedy
