from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.drivers.llama_server import habits_of, probe, read_probe
from slowtok.proxy.engines.probing.facts import Loaded, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply

Recorded = Callable[[str], ProbeReply]

QWEN = """
{%- if loop.index0 > ns.last_query_index %}{{- '<think>' + reasoning_content }}{%- endif %}
"""
DEEPSEEK = (
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
)
MISTRAL = """
{%- if tools is not none and (message == user_messages[-1]) %}
{{- "[AVAILABLE_TOOLS] [" }}
"""
LLAMA = "{%- set date_string = strftime_now('%d %b %Y') %}"
CHATML = "{% for message in messages %}{{ '<|im_start|>' + message['role'] }}{% endfor %}"


def test_no_replies_say_nothing() -> None:
    assert read_probe(None, None) == Probe()


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b'{"data": 7}', b"{", b'{"data": [7, {}]}'])
def test_garbage_says_nothing(body: bytes) -> None:
    reply = ProbeReply(status=200, body=body)
    assert read_probe(reply, reply) == Probe()


def test_a_model_that_is_being_loaded() -> None:
    reply = ProbeReply(status=503, body=b'{"error":{"code":503,"message":"Loading model"}}')
    assert read_probe(reply, reply) == Probe(loading=True)


def test_the_recorded_replies(llama_server_reply: Recorded) -> None:
    path = "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert read_probe(llama_server_reply("props"), llama_server_reply("models")) == Probe(
        version="b0-unknown",
        models=(path,),
        model_path=path,
        quantisation="Q4_1",
        parameters=134515008,
        weight_bytes=96576768,
        context_tokens=2048,
        slots=2,
        speculative=False,
        sleeping=False,
        template_habits=(),
    )


# A router: written after llama.cpp's tools/server/server-models.cpp (2026-06), not recorded.

ARGV = ["/bin/llama-server", "-m", "/m/a.gguf", "-c", "8192", "-np", "2", "--port", "40001"]
ENTRIES: list[dict[str, object]] = [
    {
        "id": "a", "aliases": ["small"], "owned_by": "llamacpp",
        "status": {"value": "loaded", "args": ARGV},
        "meta": {"n_ctx": 4096, "ftype": "Q4_0", "n_params": 7, "size": 9},
    },
    {"id": "b", "status": {"value": "unloaded", "args": ["llama-server", "-m", "/m/b.gguf"]}},
    {"id": "c d", "status": {"value": "sleeping", "args": []}},
    {"id": "e", "status": {"value": "loading", "args": []}},
]  # fmt: skip
ROUTER = {
    "role": "router", "max_instances": 4, "models_autoload": True, "model_path": "none",
    "default_generation_settings": {"params": None, "n_ctx": 0}, "build_info": "b11434-x",
}  # fmt: skip
OF_A = {
    "total_slots": 2, "model_path": "/m/a.gguf", "is_sleeping": False, "model_ftype": "Q4_0",
    "default_generation_settings": {"n_ctx": 4096, "params": {"speculative.types": "none"}},
}  # fmt: skip
LOADED_A = Loaded(
    name="a", aliases=("small",), path="/m/a.gguf", context_tokens=4096, slots=2, sleeping=False,
    speculative=False, argv=tuple(ARGV),
    model=ModelFacts(path="/m/a.gguf", quantisation="Q4_0", parameters=7, file_bytes=9),
)  # fmt: skip


def says(value: object) -> ProbeReply:
    return ProbeReply(status=200, body=orjson.dumps(value))


def test_a_router_that_holds_nothing() -> None:
    unloaded = says({"data": ENTRIES[1:2]})
    assert read_probe(says(ROUTER), unloaded) == Probe(version="b11434-x", models=("b",), loaded=())


def test_a_router_without_its_list_is_not_said_to_hold_nothing() -> None:
    assert read_probe(says(ROUTER), None).loaded is None


def test_a_router_tells_which_models_are_loaded_and_how() -> None:
    models = says({"data": ENTRIES})
    probe = read_probe(says(ROUTER), models, {"a": says(OF_A)})
    assert probe.models == ("a", "b", "c d", "e")
    assert probe.loaded == (LOADED_A, Loaded(name="c d", sleeping=True, model=ModelFacts()))
    assert (probe.model_path, probe.slots) == (None, None)
    # Without the model's own /props the list still says most of it.
    (first, _) = read_probe(says(ROUTER), models).loaded or ()
    assert first == replace(LOADED_A, slots=None, speculative=None)


async def test_a_router_is_never_asked_in_a_way_that_loads_or_wakes(aiohttp_server: Any) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path_qs}")
        if request.path == "/v1/models":
            return web.json_response({"data": ENTRIES})
        return web.json_response(OF_A if "model" in request.query else ROUTER)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = await aiohttp_server(app)
    async with aiohttp.ClientSession() as session:
        found = await probe(session, str(server.make_url("/")))
    assert found.loaded is not None
    assert found.loaded[0] == LOADED_A
    assert sorted(asked) == [
        "GET /props", "GET /props?model=a&autoload=false", "GET /v1/models",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "habits"),
    [
        (QWEN, ("thinking",)),
        (DEEPSEEK, ("thinking",)),
        (MISTRAL, ("tools-last",)),
        (LLAMA, ("clock",)),
        (QWEN + LLAMA, ("thinking", "clock")),
        (CHATML, ()),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_habits(template: object, habits: tuple[str, ...] | None) -> None:
    assert habits_of(template) == habits
