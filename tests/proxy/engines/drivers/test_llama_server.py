from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.drivers.llama_server import (
    habits_of,
    parse_flags,
    probe,
    read_probe,
    with_defaults,
)
from slowtok.proxy.engines.engine import Engine
from slowtok.proxy.engines.probing.facts import ALL_LAYERS, Flags, Identity, Loaded, Probe
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


def test_the_recorded_replies_of_a_router(llama_router_reply: Recorded) -> None:
    models = llama_router_reply("models")
    seen = read_probe(
        llama_router_reply("props"), models, {"small": llama_router_reply("props-of-small")}
    )

    assert (seen.version, seen.models) == ("b11549-unknown", ("other", "small"))
    (small,) = seen.loaded or ()
    argv = " ".join(small.argv)
    assert argv.startswith("/usr/bin/llama-server --host 127.0.0.1 ")
    assert argv.endswith("--model /models/small.gguf --n-gpu-layers 0 --parallel 1 --threads 1")
    assert replace(small, argv=()) == Loaded(
        name="small",
        path="/models/small.gguf",
        context_tokens=2048,
        slots=1,
        speculative=False,
        sleeping=False,
        template_habits=(),
        model=ModelFacts(
            path="/models/small.gguf",
            quantisation="Q4_1",
            parameters=134515008,
            file_bytes=96576768,
        ),
    )
    # One that is not loaded is not, and asking for it loads nothing.
    assert llama_router_reply("props-of-other").status == 400


# A router with every state, aliases and sleeping models, after server-models.cpp (2026-06).

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
    assert read_probe(says(ROUTER), unloaded) == Probe(
        version="b11434-x", models=("b",), loaded=(), most_loaded=4
    )


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


def test_a_router_loads_what_it_has_not_loaded_and_a_plain_server_nothing(
    llama_router_reply: Recorded, llama_server_reply: Recorded
) -> None:
    kind = Identity(kind="llama-server")
    router = Engine(name="e", url="http://127.0.0.1:8080", given=True, identity=kind)
    router.probe = read_probe(llama_router_reply("props"), llama_router_reply("models"))
    router.note_list("/v1/models", llama_router_reply("models").json)
    waits = {name: router.awaits_load(name) for name in ("small", "other", "what", None)}
    assert waits == {"small": False, "other": True, "what": None, None: None}

    for name in ("small", "other"):  # nobody has looked since
        router.note_asked(name)
    router.wanted.set()
    waits = {name: router.awaits_load(name) for name in ("small", "other")}
    assert waits == {"small": True, "other": False}

    plain = Engine(name="e", url="http://127.0.0.1:8080", given=True, identity=kind)
    plain.probe = read_probe(llama_server_reply("props"), llama_server_reply("models"))
    plain.note_list("/v1/models", llama_server_reply("models").json)
    assert plain.awaits_load(plain.probe.models[0]) is None


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


def flags(line: str, **environ: str) -> Flags:
    return parse_flags(line.split(), environ)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "llama-server",
        "llama-server --host 127.0.0.1 --no-webui",
        "llama-server -c",  # cut short
        "llama-server -ngl many -t x",
        "python -c print(1)",
        "python -m http.server",
        "python server.py",
    ],
)
def test_what_is_not_said_is_not_known(line: str) -> None:
    assert flags(line) == Flags()


@pytest.mark.parametrize(
    "program",
    [
        "llama-server",
        "/opt/llama.cpp/build/bin/llama-server",
        "llama serve",
        "python -m slowtok.proxy.cli.demo.engine",
        "/venv/bin/python3.11 -X dev -u -m some.module",
        "python3 /srv/start.py",
    ],
)
def test_the_name_of_the_program_does_not_matter(program: str) -> None:
    said = flags(f"{program} --model /m.gguf -c 4096 -np 2 -t 2 -ngl 0 --port 9")
    assert said == Flags(
        model_path="/m.gguf", context_tokens=4096, slots=2, threads=2, gpu_layers=0
    )


@pytest.mark.parametrize("option", ["-ngl", "--gpu-layers", "--n-gpu-layers"])
@pytest.mark.parametrize(
    ("text", "layers"),
    [("33", 33), ("0", 0), ("auto", -1), ("-1", -1), ("all", ALL_LAYERS), ("-2", ALL_LAYERS)],
)
def test_gpu_layers(option: str, text: str, layers: int) -> None:
    assert flags(f"llama-server {option} {text}").gpu_layers == layers


def test_both_ways_to_give_a_value() -> None:
    assert flags("llama-server --threads=6 --ctx-size=1024") == flags(
        "llama-server --threads 6 --ctx-size 1024"
    )


def test_the_last_of_two_wins() -> None:
    assert flags("llama-server -t 4 --threads 8").threads == 8


def test_the_command_line_wins_over_the_environment() -> None:
    said = flags("llama-server -t 4", LLAMA_ARG_THREADS="8", LLAMA_ARG_N_GPU_LAYERS="20")
    assert (said.threads, said.gpu_layers) == (4, 20)


def test_a_foreign_environment_says_nothing() -> None:
    assert flags("llama-server", THREADS="8", LLAMA_ARG_HOST="::") == Flags()


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("-fa on", "on"),
        ("-fa 1", "on"),
        ("--flash-attn off", "off"),
        ("--flash-attn=auto", "auto"),
        ("-fa -1", "auto"),
        ("-fa", "on"),
        ("-fa -t 4", "on"),
    ],
)
def test_flash_attention_old_and_new(line: str, value: str) -> None:
    assert flags(f"llama-server {line}").flash_attention == value


def test_an_option_that_stood_alone_does_not_swallow_the_next() -> None:
    assert flags("llama-server -fa -t 4").threads == 4


@pytest.mark.parametrize(
    ("line", "environ", "mapped"),
    [
        ("--no-mmap", {}, False),
        ("--load-mode none", {}, False),
        ("--load-mode dio", {}, False),
        ("-lm mmap+mlock", {}, True),
        ("-lm auto", {}, None),
        ("", {"LLAMA_ARG_LOAD_MODE": "none"}, False),
        ("", {"LLAMA_ARG_NO_MMAP": "1"}, False),
        ("", {"LLAMA_ARG_MMAP": "0"}, False),
        ("", {}, None),
    ],
)
def test_memory_mapping_old_and_new(
    line: str, environ: dict[str, str], mapped: bool | None
) -> None:
    assert flags(f"llama-server {line}", **environ).memory_mapped is mapped


@pytest.mark.parametrize(
    ("line", "speculative"),
    [
        ("--spec-type draft-mtp", True),
        ("--spec-type none", False),
        ("-md /draft.gguf", True),
        ("--spec-draft-model=/draft.gguf", True),
        ("", None),
    ],
)
def test_speculation(line: str, speculative: bool | None) -> None:
    assert flags(f"llama-server {line}").speculative is speculative


def test_everything_else() -> None:
    said = flags(
        "llama-server -b 1024 -ub 256 -ctk q8_0 --cache-type-v q4_0 -nkvo -sm row "
        "--sleep-idle-seconds 60 -ncmoe 12 --alias tiny"
    )
    assert said == Flags(
        batch_tokens=1024, micro_batch_tokens=256, kv_type_k="q8_0", kv_type_v="q4_0",
        kv_on_gpu=False, split_mode="row", sleep_idle_s=60, cpu_moe_layers=12, alias="tiny",
    )  # fmt: skip
    assert flags("llama-server", LLAMA_ARG_KV_OFFLOAD="0").kv_on_gpu is False


@pytest.mark.parametrize(
    ("line", "environ", "layers"),
    [
        ("", {}, None),
        ("-ot token_embd.weight=CPU", {}, None),
        ("-ot exps=CUDA1", {}, None),
        ("-ot blk.(1|2).ffn_.*_exps.=CPU", {}, None),  # some layers: how many is not known
        ("-ot ffn_(up|down)_exps=CPU", {}, None),  # some matrices of each
        ("-ot blk.(1|2).ffn_.*_exps=CUDA0 -ot exps=CPU", {}, None),  # the first one counts
        ("-ot *exps=CPU", {}, None),  # no pattern
        ("-ot blk.[0-9]+.ffn_(gate|up|down)_exps=CPU", {}, ALL_LAYERS),
        ("-ot ffn_up_exps=CPU,ffn_(gate|down)=CPU", {}, ALL_LAYERS),
        ("--cpu-moe", {}, ALL_LAYERS),
        ("-ncmoe 12", {}, 12),
        ("-ot exps=CPU", {}, ALL_LAYERS),
        ("-ot attn=CUDA0 --override-tensor=.ffn_.*_exps.=CPU -ot b=CUDA0", {}, ALL_LAYERS),
        ("-ot token_embd.weight=CPU,exps=CPU", {}, ALL_LAYERS),
        ("", {"LLAMA_ARG_CPU_MOE": "1"}, ALL_LAYERS),
        ("", {"LLAMA_ARG_OVERRIDE_TENSOR": "exps=CPU"}, ALL_LAYERS),
    ],
)
def test_experts_in_ram(line: str, environ: dict[str, str], layers: int | None) -> None:
    assert flags(f"llama-server {line}", **environ).cpu_moe_layers == layers


def test_no_device_is_no_layer_on_one() -> None:
    assert flags("llama-server -ngl 99 --device none").gpu_layers == 0
    assert flags("llama-server -ngl 99 --device CUDA1").gpu_layers == 99


@pytest.mark.parametrize(
    ("line", "shared"),
    [
        ("", True),  # as many slots as the engine likes, over one context
        ("-np -1", True),
        ("-np 4", False),
        ("-np 4 -kvu", True),
        ("-no-kvu", False),
        ("-np 4 -kvu --kv-unified-per-slot 4096", False),
    ],
)
def test_whether_slots_share_the_context(line: str, shared: bool) -> None:
    assert with_defaults(flags(f"llama-server {line}")).context_shared is shared


def test_defaults_fill_only_what_is_not_said() -> None:
    assert with_defaults(Flags()) == Flags(
        gpu_layers=-1, context_shared=True, batch_tokens=2048, micro_batch_tokens=512,
        kv_type_k="f16", kv_type_v="f16", kv_on_gpu=True, prefix_caching=True, speculative=False,
        split_mode="layer",
    )  # fmt: skip
    said = flags("llama-server -ngl 3 -ub 64 -nkvo -ctk q8_0 --no-cache-prompt -sm none -md /d")
    full = with_defaults(said)
    assert (full.gpu_layers, full.micro_batch_tokens, full.kv_on_gpu) == (3, 64, False)
    assert (full.kv_type_k, full.kv_type_v) == ("q8_0", "f16")
    assert (full.prefix_caching, full.split_mode, full.speculative) == (False, "none", True)


def test_a_micro_batch_is_no_larger_than_a_batch() -> None:
    assert with_defaults(flags("llama-server -b 128")).micro_batch_tokens == 128
