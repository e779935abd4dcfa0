from collections.abc import Callable

import orjson
import pytest

from slowtok.proxy.servers.facts import ALL_LAYERS, Flags, Loaded, Probe
from slowtok.proxy.servers.llama_server import parse_flags, read_probe
from slowtok.proxy.servers.reply import Reply

Recorded = Callable[[str], Reply]


def flags(line: str, **environ: str) -> Flags:
    return parse_flags(line.split(), environ)


def test_no_replies_say_nothing() -> None:
    assert read_probe(None, None) == Probe()


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b'{"data": 7}', b"{", b'{"data": [7, {}]}'])
def test_garbage_says_nothing(body: bytes) -> None:
    reply = Reply(status=200, body=body)
    assert read_probe(reply, reply) == Probe()


def test_a_model_that_is_being_loaded() -> None:
    reply = Reply(status=503, body=b'{"error":{"code":503,"message":"Loading model"}}')
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
    )


def test_a_router_tells_which_models_are_loaded_and_how() -> None:
    """Written after llama.cpp's tools/server/server-models.cpp, not recorded."""
    argv = ["llama-server", "-m", "/m/a.gguf", "-c", "8192", "-np", "2", "--port", "40001"]
    entries = [
        {"id": "a", "status": {"value": "loaded", "args": argv}, "meta": {"n_ctx": 4096}},
        {"id": "b", "status": {"value": "unloaded"}},
        {"id": "c", "status": {"value": "sleeping", "args": []}},
    ]
    props = Reply(status=200, body=b'{"role":"router","build_info":"b11434-x"}')
    probe = read_probe(props, Reply(status=200, body=orjson.dumps({"data": entries})))
    assert probe.models == ("a", "b", "c")
    assert probe.loaded == (
        Loaded(name="a", path="/m/a.gguf", context_tokens=4096, sleeping=False, argv=tuple(argv)),
        Loaded(name="c", sleeping=True),
    )
    assert probe.model_path is None
    assert probe.slots is None


# The command line.


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
        "python -m slowtok.proxy.demo.engine",
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
    assert flags("llama-server --cpu-moe").cpu_moe_layers == ALL_LAYERS
