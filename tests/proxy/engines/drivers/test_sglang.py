"""The body of `/server_info` is a part of the one in SGLang's documentation of its native API
(docs.sglang.io, basic_usage/native_api, run on 2026-05-29); the list of models is written after
python/sglang/srt/entrypoints/openai/protocol.py.
"""

from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from slowtok.proxy.engines.drivers.sglang import probe, read_probe
from slowtok.proxy.engines.models.loading import AS_IN_THE_FILES, Loading
from slowtok.proxy.engines.probing.facts import Flags, Identity, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply
from slowtok.proxy.engines.probing.server_facts import server_facts

INFO: dict[str, object] = {
    "model_path": "qwen/qwen2.5-0.5b-instruct", "context_length": None, "host": "0.0.0.0",
    "port": 31619, "dtype": "auto", "quantization": None, "kv_cache_dtype": "auto",
    "mem_fraction_static": 0.836, "max_running_requests": 128, "max_total_tokens": 20480,
    "chunked_prefill_size": 8192, "max_prefill_tokens": 16384, "device": "cuda", "tp_size": 1,
    "pp_size": 1, "api_key": "hidden", "served_model_name": "qwen/qwen2.5-0.5b-instruct",
    "attention_backend": "fa3", "speculative_algorithm": None, "cpu_offload_gb": 0,
    "disable_radix_cache": False, "disable_cuda_graph": True, "max_total_num_tokens": 20480,
    "max_req_input_len": 20474, "internal_states": [{}], "version": "0.5.9",
}  # fmt: skip
MODELS = {
    "object": "list",
    "data": [
        {
            "id": "qwen/qwen2.5-0.5b-instruct", "object": "model", "owned_by": "sglang",
            "root": "qwen/qwen2.5-0.5b-instruct", "parent": None, "max_model_len": 32768,
        }
    ],
}  # fmt: skip
SGLANG = Identity(kind="sglang")
FOUND = Probe(
    version="0.5.9", models=("qwen/qwen2.5-0.5b-instruct",),
    model_path="qwen/qwen2.5-0.5b-instruct", context_tokens=32768, slots=128,
    kv_cache_tokens=20480,
    flags=Flags(
        model_path="qwen/qwen2.5-0.5b-instruct", alias="qwen/qwen2.5-0.5b-instruct",
        batch_tokens=8192, kv_type_k="auto", kv_type_v="auto", speculative=False,
        tensor_parallel=1, gpu_memory_ratio=0.836, prefix_caching=True, eager=True,
        cpu_offload_bytes=0,
    ),
    weights=AS_IN_THE_FILES,
)  # fmt: skip


def says(value: object) -> ProbeReply:
    return ProbeReply(status=200, body=orjson.dumps(value))


@pytest.mark.parametrize("said", [None, [], {}, 7])
def test_garbage_says_nothing(said: object) -> None:
    reply = None if said is None else says(said)
    assert read_probe(reply, reply) == Probe()


def test_what_it_says_of_itself() -> None:
    assert read_probe(says(INFO), says(MODELS)) == FOUND


def test_a_prompt_that_is_not_cut_has_no_piece() -> None:
    flags = read_probe(says({**INFO, "chunked_prefill_size": -1}), None).flags
    assert flags is not None
    assert flags.batch_tokens is None


def test_drafts_and_offload() -> None:
    info = {**INFO, "speculative_algorithm": "EAGLE3", "cpu_offload_gb": 2}
    facts = server_facts(SGLANG, read_probe(says(info), says(MODELS)), None)
    assert (facts.speculative, facts.cpu_offload_bytes) == (True, 2 << 30)


@pytest.mark.parametrize(
    ("more", "weights"),
    [
        pytest.param({"json_model_override_args": "{}", "load_format": "auto",
                      "torchao_config": ""}, AS_IN_THE_FILES, id="when nothing was asked"),
        pytest.param({"quantization": "unquant"}, AS_IN_THE_FILES, id="asked not to"),
        pytest.param({"quantization": "fp8"},
                     Loading(quantisation="fp8", linear_bits=8, expert_bits=8), id="fp8"),
        pytest.param({"quantization": "bitsandbytes"}, Loading(quantisation="bitsandbytes"),
                     id="of no known size"),
        pytest.param({"dtype": "float32"}, Loading(plain_bits=32), id="32 bits"),
    ],
)  # fmt: skip
def test_how_it_loads_weights(more: dict[str, object], weights: Loading) -> None:
    assert read_probe(says({**INFO, **more}), None).weights == weights


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"torchao_config": "int4wo-128"}, "--torchao-config"),
        ({"modelopt_quant": {"quant_cfg": "fp8"}}, "--modelopt-quant"),
        ({"json_model_override_args": '{"num_hidden_layers": 2}'}, "--hf-overrides"),
        ({"load_format": "presharded"}, "--load-format presharded"),
        ({"enable_fp32_lm_head": True}, "--enable-fp32-lm-head"),
    ],
)
def test_what_hides_the_size_of_weights(more: dict[str, object], option: str) -> None:
    weights = read_probe(says({**INFO, **more}), None).weights
    assert weights is not None
    assert option in (weights.doubt or "")


def test_a_cache_of_32_bits() -> None:
    flags = read_probe(says({**INFO, "dtype": "float32"}), None).flags
    assert flags is not None
    assert flags.kv_type_k == "f32"


def test_its_keys_are_in_no_fact() -> None:
    found = read_probe(says(INFO), says(MODELS))
    assert "hidden" not in repr(found) + repr(server_facts(SGLANG, found, None))


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_a_real_exchange_old_and_new(aiohttp_server: Any, path: str) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path}")
        known = {path: INFO, "/v1/models": MODELS}
        if request.path not in known:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response(known[request.path])

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = await aiohttp_server(app)
    async with aiohttp.ClientSession() as session:
        assert await probe(session, str(server.make_url("/"))) == FOUND
    assert ("GET /get_server_info" in asked) == (path == "/get_server_info")
