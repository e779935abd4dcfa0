import os

import pytest

from slowtok.detectors.engine import ServerFacts
from slowtok.proxy.sampling.wire import ChildProcess, ProcessFacts
from slowtok.proxy.servers.facts import Identity, Loaded, Probe
from slowtok.proxy.servers.server_facts import loaded_model, model_path, server_facts

LLAMA_SERVER = Identity(kind="llama-server", version="b11434-abc")
OLLAMA = Identity(kind="ollama", version="0.33.0")
ANSWERED = Probe(
    models=("m",), model_path="/m.gguf", context_tokens=2048, slots=2, speculative=False,
    sleeping=False,
)  # fmt: skip


def process(line: str, **environment: str) -> ProcessFacts:
    return ProcessFacts(
        port=1, pid=7, created_unix_s=100.0, cmdline=tuple(line.split()), environment=environment
    )


def test_nothing_known_stays_unknown() -> None:
    facts = server_facts(Identity(kind="unknown"), Probe(), None)
    assert facts == ServerFacts()


def test_an_engine_elsewhere_says_nothing_of_its_flags() -> None:
    facts = server_facts(LLAMA_SERVER, ANSWERED, None, local=False)
    assert facts.gpu_layers is None
    assert facts.kv_type_k is None
    assert facts.unmapped == "the engine runs on another machine"
    assert facts.context_tokens == 2048


def test_a_process_that_is_not_visible_says_why() -> None:
    facts = server_facts(LLAMA_SERVER, ANSWERED, ProcessFacts(port=1, unmapped="docker-proxy"))
    assert facts.unmapped == "docker-proxy"
    assert facts.gpu_layers is None


def test_a_wrapper_that_takes_no_options_may_have_set_them_in_code() -> None:
    facts = server_facts(LLAMA_SERVER, ANSWERED, process("python engine.py model.gguf 8080"))
    assert facts.gpu_layers is None
    assert facts.kv_type_k is None


def test_llama_server_with_its_defaults() -> None:
    facts = server_facts(
        LLAMA_SERVER, ANSWERED, process("llama-server -m /m.gguf"),
        url="http://127.0.0.1:1", name="local", local=True, now_unix_s=160.0,
    )  # fmt: skip
    assert facts == ServerFacts(
        kind="llama-server", name="local", url="http://127.0.0.1:1", version="b11434-abc",
        local=True, pid=7, context_tokens=2048, slots=2, gpu_layers=-1, kv_type_k="f16",
        kv_type_v="f16", speculative=False, slept=False, uptime_s=60.0,
    )  # fmt: skip


def test_the_demos_engine() -> None:
    line = "python -m slowtok.proxy.demo.engine --model /m.gguf -c 4096 -np 2 -t 2 -ngl 0 --port 9"
    facts = server_facts(LLAMA_SERVER, ANSWERED, process(line), local=True)
    assert (facts.gpu_layers, facts.threads, facts.slots) == (0, 2, 2)


def test_what_the_engine_answers_wins_over_what_it_was_asked() -> None:
    facts = server_facts(LLAMA_SERVER, ANSWERED, process("llama-server -c 65536 -np 8"))
    assert (facts.context_tokens, facts.slots) == (2048, 2)


def test_before_it_answers_the_flags_count() -> None:
    facts = server_facts(LLAMA_SERVER, Probe(loading=True), process("llama-server -c 8192 -np 4"))
    assert (facts.context_tokens, facts.slots) == (2048, 4)
    automatic = server_facts(LLAMA_SERVER, Probe(), process("llama-server -np -1"))
    assert automatic.slots is None


@pytest.mark.parametrize("asked", ["-1", "0"])
def test_threads_below_one_are_all_logical_cores(asked: str) -> None:
    facts = server_facts(LLAMA_SERVER, ANSWERED, process(f"llama-server -t {asked}"))
    assert facts.threads == os.cpu_count()


def test_a_draft_model_is_speculation_whatever_the_default_settings_say() -> None:
    facts = server_facts(LLAMA_SERVER, ANSWERED, process("llama-server -md /d.gguf"))
    assert facts.speculative is True


def test_ollama_is_read_by_the_child_that_runs_the_model() -> None:
    loaded = Loaded(name="llama3:latest", path="/blobs/a", context_tokens=4096)
    child = ("llama-server", "--model", "/blobs/a", "-ngl", "20", "--cache-type-k", "q8_0")
    owner = ProcessFacts(
        port=11434, pid=3, cmdline=("ollama", "serve"),
        children=(ChildProcess(pid=4, cmdline=child),),
    )  # fmt: skip
    facts = server_facts(OLLAMA, Probe(loaded=(loaded,)), owner, model="llama3")
    assert (facts.gpu_layers, facts.kv_type_k, facts.kv_type_v) == (20, "q8_0", "f16")
    assert facts.context_tokens == 4096
    assert facts.version == "0.33.0"


def test_a_model_that_ollama_has_not_loaded_has_no_facts() -> None:
    probe = Probe(loaded=(Loaded(name="a:1", path="/a"), Loaded(name="b:1", path="/b")))
    assert loaded_model(probe, "c") is None
    assert loaded_model(probe, None) is None
    assert model_path(OLLAMA, probe, "b:1") == "/b"
    assert model_path(OLLAMA, probe, "c") is None


def test_only_llama_server_answers_with_a_file() -> None:
    assert model_path(LLAMA_SERVER, ANSWERED) == "/m.gguf"
    assert model_path(Identity(kind="vllm"), Probe(model_path="org/model")) is None


def test_vllm_is_read_by_its_own_command_line() -> None:
    facts = server_facts(
        Identity(kind="vllm"), Probe(context_tokens=8192),
        process("vllm serve org/m --max-num-seqs 4 --kv-cache-dtype fp8"),
    )  # fmt: skip
    assert (facts.slots, facts.kv_type_k, facts.gpu_layers) == (4, "fp8", None)
    assert facts.context_tokens == 8192
