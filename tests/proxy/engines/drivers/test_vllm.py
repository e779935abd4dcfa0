from collections.abc import Callable

import pytest

from fakes import recordings
from slowtok.proxy.engines.drivers.vllm import parse_flags, read_probe, weights_asked
from slowtok.proxy.engines.probing.facts import Flags, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply

Recorded = Callable[[str], ProbeReply]
METRICS = recordings.unframe(recordings.load("vllm-0.32.metrics")).body


def cache_page(*configs: str) -> ProbeReply:
    lines = (f"vllm:cache_config_info{{{config}}} 1.0" for config in configs)
    return ProbeReply(status=200, body="\n".join(lines).encode())


def test_no_replies_say_nothing() -> None:
    assert read_probe(None, None) == Probe()
    garbage = ProbeReply(status=200, body=b'{"data": [3], "version": ')
    assert read_probe(garbage, garbage) == Probe()


def test_the_recorded_replies(vllm_reply: Recorded) -> None:
    assert read_probe(vllm_reply("version"), vllm_reply("models")) == Probe(
        version="0.32.0", models=("smollm2",), model_path="/models/smollm2-hf", context_tokens=2048
    )


def test_the_recorded_metrics() -> None:
    assert read_probe(None, None, ProbeReply(status=200, body=METRICS)) == Probe(
        kv_cache_tokens=46592,
        gpu_memory_ratio=0.92,
        prefix_caching=True,
        cache_block_tokens=128,
    )


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        pytest.param(ProbeReply(status=404, body=METRICS), None, id="switched off"),
        pytest.param(cache_page('block_size="16",num_gpu_blocks="None"'), None, id="not yet"),
        pytest.param(cache_page('block_size="16",num_gpu_blocks="10"'), 160, id="before 0.3x"),
        pytest.param(
            cache_page('kv_cache_size_tokens="100"', 'kv_cache_size_tokens="60"'), 160,
            id="two engines",
        ),
    ],
)  # fmt: skip
def test_what_the_cache_holds(reply: ProbeReply, tokens: int | None) -> None:
    assert read_probe(None, None, reply).kv_cache_tokens == tokens


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("--enforce-eager", Flags(eager=True)),
        ("--no-enforce-eager", Flags(eager=False)),
        ("--enable_prefix_caching", Flags(prefix_caching=True)),
        ("--no-enable-prefix-caching", Flags(prefix_caching=False)),
        ("--gpu-memory-utilization 0.85", Flags(gpu_memory_ratio=0.85)),
        ("--gpu-memory-utilization=much", Flags()),
        ("--cpu-offload-gb 2.5", Flags(cpu_offload_bytes=5 << 29)),
        ("--cpu-offload-gb 0", Flags(cpu_offload_bytes=0)),
        ("--max-model-len 32k", Flags(context_tokens=32_000)),
        ("--max-model-len 32K", Flags(context_tokens=32_768)),
        ("--max-model-len auto", Flags()),
        ("--max-num-batched-tokens 25.6k", Flags(batch_tokens=25_600)),
        ("--kv-cache-dtype auto", Flags(kv_type_k="auto", kv_type_v="auto")),
        ("--dtype float32", Flags(kv_type_k="f32", kv_type_v="f32")),
        ("--dtype float32 --kv-cache-dtype fp8", Flags(kv_type_k="fp8", kv_type_v="fp8")),
        ("--kv-cache-dtype-skip-layers 0 1", Flags()),
    ],
)
def test_one_option(line: str, flags: Flags) -> None:
    assert parse_flags(["vllm", "serve", *line.split()]) == flags


def test_a_cache_of_two_types_is_of_no_known_size() -> None:
    line = "vllm serve org/m --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers sliding_window"
    assert parse_flags(line.split()).kv_type_k == "fp8, not in all layers"


def test_which_weights_are_asked_for() -> None:
    line = "vllm serve org/m --download-dir /models --revision=abc"

    assert weights_asked(line.split()) == ("/models", "abc")
    assert weights_asked([]) == (None, None)


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
