from collections.abc import Callable

from slowtok.proxy.servers.facts import Flags, Probe
from slowtok.proxy.servers.reply import Reply
from slowtok.proxy.servers.vllm import parse_flags, read_probe

Recorded = Callable[[str], Reply]


def test_no_replies_say_nothing() -> None:
    assert read_probe(None, None) == Probe()
    garbage = Reply(status=200, body=b'{"data": [3], "version": ')
    assert read_probe(garbage, garbage) == Probe()


def test_the_recorded_replies(vllm_reply: Recorded) -> None:
    assert read_probe(vllm_reply("version"), vllm_reply("models")) == Probe(
        version="0.32.0", models=("smollm2",), model_path="/models/smollm2-hf", context_tokens=2048
    )


def test_a_title_in_place_of_a_command_line_says_nothing() -> None:
    assert parse_flags(["VLLM::EngineCore"]) == Flags()


def test_the_parents_command_line() -> None:
    said = parse_flags(
        [
            "/venv/bin/python", "/venv/bin/vllm", "serve", "org/model", "--max-model-len", "8192",
            "--max_num_seqs=4", "--kv-cache-dtype", "fp8", "--speculative-config", "{}", "-tp", "2",
        ]
    )  # fmt: skip
    assert said == Flags(
        model_path="org/model", context_tokens=8192, slots=4, kv_type_k="fp8", kv_type_v="fp8",
        speculative=True, tensor_parallel=2,
    )  # fmt: skip


def test_the_older_way_to_start_it() -> None:
    line = "python -m vllm.entrypoints.openai.api_server --model /m --served-model-name x"
    assert parse_flags(line.split()) == Flags(model_path="/m", alias="x")
