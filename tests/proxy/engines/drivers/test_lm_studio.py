"""Bodies after LM Studio's documentation of its lists of models, not recorded.

/api/v1/models: https://lmstudio.ai/docs/developer/rest/list (0.4.0); /api/v0/models:
https://lmstudio.ai/docs/api/rest-api (0.3.6).
"""

from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.drivers.lm_studio import probe, read_probe, read_probe_v0
from slowtok.proxy.engines.probing.facts import Flags, Identity, Loaded, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply
from slowtok.proxy.engines.probing.server_facts import server_facts

V1 = {
    "models": [
        {
            "type": "llm", "publisher": "google", "key": "google/gemma-4-26b-a4b",
            "display_name": "Gemma 4 26B A4B", "architecture": "gemma4",
            "quantization": {"name": "Q4_K_M", "bits_per_weight": 4}, "size_bytes": 17990911801,
            "params_string": "26B-A4B", "max_context_length": 262144, "format": "gguf",
            "loaded_instances": [
                {
                    "id": "gemma:2",
                    "config": {
                        "context_length": 4096, "eval_batch_size": 512, "parallel": 4,
                        "flash_attention": True, "num_experts": 8,
                        "offload_kv_cache_to_gpu": False,
                    },
                }
            ],
            "selected_variant": "google/gemma-4-26b-a4b@q4_k_m",
        },
        {
            "type": "embedding", "publisher": "gaianet", "key": "nomic-embed",
            "quantization": {"name": "F16", "bits_per_weight": 16}, "size_bytes": 274290560,
            "loaded_instances": [], "max_context_length": 2048, "format": "gguf",
        },
    ]
}  # fmt: skip
V0 = {
    "object": "list",
    "data": [
        {
            "id": "qwen2-vl-7b-instruct", "object": "model", "type": "vlm", "arch": "qwen2_vl",
            "publisher": "mlx-community", "compatibility_type": "mlx", "quantization": "4bit",
            "state": "not-loaded", "max_context_length": 32768,
        },
        {
            "id": "meta-llama-3.1-8b-instruct", "object": "model", "type": "llm", "arch": "llama",
            "publisher": "lmstudio-community", "compatibility_type": "gguf",
            "quantization": "Q4_K_M", "state": "loaded", "max_context_length": 131072,
            "loaded_context_length": 8192,
        },
    ],
}  # fmt: skip
OPENAI = {"object": "list", "data": [{"id": "a", "owned_by": "organization_owner"}, {"id": "b"}]}
GEMMA = Loaded(
    name="gemma:2", aliases=("google/gemma-4-26b-a4b", "google/gemma-4-26b-a4b@q4_k_m"),
    context_tokens=4096, slots=4,
    model=ModelFacts(quantisation="Q4_K_M", bits_per_weight=4, file_bytes=17990911801),
    flags=Flags(batch_tokens=512, flash_attention="on", kv_on_gpu=False),
)  # fmt: skip
LLAMA = Loaded(
    name="meta-llama-3.1-8b-instruct", context_tokens=8192, model=ModelFacts(quantisation="Q4_K_M"),
)  # fmt: skip


def says(value: object) -> ProbeReply:
    return ProbeReply(status=200, body=orjson.dumps(value))


@pytest.mark.parametrize("said", [None, {"error": "Unexpected endpoint"}, {"models": 3}, [], 7])
def test_garbage_says_nothing(said: object) -> None:
    reply = None if said is None else says(said)
    assert read_probe(reply, reply) == Probe()
    assert read_probe_v0(reply, reply) == Probe()


def test_each_loaded_instance_tells_how_it_was_loaded() -> None:
    found = read_probe(says(V1), says(OPENAI))
    assert found == Probe(models=("a", "b"), loaded=(GEMMA,))


def test_an_instance_is_meant_by_its_id_and_by_its_models_key() -> None:
    found = read_probe(says(V1), says(OPENAI))
    for name in ("gemma:2", "google/gemma-4-26b-a4b"):
        facts = server_facts(Identity(kind="lm-studio"), found, None, model=name)
        assert (facts.context_tokens, facts.slots, facts.batch_tokens) == (4096, 4, 512)
        assert (facts.flash_attention, facts.kv_on_gpu, facts.loaded_models) == (
            "on", False, ("gemma:2",),
        )  # fmt: skip
        assert (facts.speculative, facts.gpu_layers, facts.kv_cache_tokens) == (None, None, None)


def test_the_older_list() -> None:
    assert read_probe_v0(says(V0), says(OPENAI)) == Probe(models=("a", "b"), loaded=(LLAMA,))


@pytest.mark.parametrize(("newer", "loaded"), [(True, (GEMMA,)), (False, (LLAMA,))])
async def test_a_real_exchange_loads_nothing(
    aiohttp_server: Any, newer: bool, loaded: tuple[Loaded, ...]
) -> None:
    asked: set[str] = set()

    async def answer(request: web.Request) -> web.Response:
        asked.add(request.method)
        known = {"/v1/models": OPENAI, "/api/v0/models": V0} | (
            {"/api/v1/models": V1} if newer else {}
        )
        error = {"error": f"Unexpected endpoint or method. ({request.method} {request.path})"}
        return web.json_response(known.get(request.path, error))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = await aiohttp_server(app)
    async with aiohttp.ClientSession() as session:
        found = await probe(session, str(server.make_url("/")))
    assert found == Probe(models=("a", "b"), loaded=loaded)
    assert asked == {"GET"}
