import os
from dataclasses import replace

import pytest

from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.proxy.engines.probing.facts import Flags, Identity, Loaded, Probe
from slowtok.proxy.engines.probing.server_facts import (
    loaded_model,
    model_path,
    server_facts,
    told_model,
)
from slowtok.proxy.sampling.protocol import ChildProcess, ProcessFacts

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


def test_an_engine_behind_a_gateway_is_somewhere_behind_it() -> None:
    gateway = ProcessFacts(port=1, unmapped="litellm")
    facts = server_facts(LLAMA_SERVER, ANSWERED, gateway, local=True)
    assert facts.local is False
    assert facts.unmapped == "litellm listens at its port, and the engine is somewhere behind it"


def test_the_engine_behind_llama_swap_is_the_engine() -> None:
    small = Loaded(
        name="small", kind="llama-server", version="b11434", url="http://localhost:5801", slots=1,
        path="/m.gguf",
    )  # fmt: skip
    swap, probe = Identity(kind="llama-swap", version="250"), Probe(loaded=(small,))
    runs_it = ProcessFacts(port=5801, pid=9, cmdline=("llama-server", "-m", "/m.gguf", "-ngl", "7"))
    facts = server_facts(swap, probe, runs_it, local=True, model="small")
    assert (facts.kind, facts.version, facts.pid) == ("llama-server", "b11434", 9)
    assert (facts.through, facts.gpu_layers, facts.slots) == ("llama-swap", 7, 1)


def test_the_command_line_of_llama_swap_itself_is_not_the_engines() -> None:
    small = Loaded(name="small", kind="llama-server", url="http://localhost:5801")
    starts_it = ProcessFacts(port=8080, pid=8, cmdline=("llama-swap", "--config", "c.yaml"))
    swap = Identity(kind="llama-swap", version="250")
    facts = server_facts(swap, Probe(loaded=(small,)), starts_it, local=True, model="small")
    assert (facts.gpu_layers, facts.kv_type_k) == (None, None)
    asleep = server_facts(swap, Probe(loaded=()), starts_it, local=True, model="small")
    assert (asleep.kind, asleep.version) == ("llama-swap", "250")


def test_a_wrapper_that_takes_no_options_may_have_set_them_in_code() -> None:
    facts = server_facts(LLAMA_SERVER, ANSWERED, process("python engine.py model.gguf 8080"))
    assert facts.gpu_layers is None
    assert facts.kv_type_k is None


def test_llama_server_with_its_defaults() -> None:
    facts = server_facts(
        LLAMA_SERVER, ANSWERED, process("llama-server -m /m.gguf"),
        url="http://127.0.0.1:1", name="local", local=True,
    )  # fmt: skip
    assert facts == ServerFacts(
        kind="llama-server", name="local", url="http://127.0.0.1:1", version="b11434-abc",
        local=True, pid=7, context_tokens=2048, slots=2, gpu_layers=-1, kv_type_k="f16",
        kv_type_v="f16", speculative=False, slept=False, batch_tokens=2048,
        micro_batch_tokens=512, kv_on_gpu=True, split_mode="layer", kv_cache_tokens=2048,
        prefix_caching=True, started_unix_s=100.0,
    )  # fmt: skip


def test_the_demos_engine() -> None:
    line = (
        "python -m slowtok.proxy.cli.demo.engine --model /m.gguf -c 4096 -np 2 -t 2 -ngl 0 --port 9"
    )
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


def ollama_child(path: str, options: str) -> ChildProcess:
    return ChildProcess(pid=4, cmdline=("llama-server", "--model", path, *options.split()))


def test_ollama_with_several_models_tells_each_ones_facts() -> None:
    probe = Probe(
        loaded=(
            Loaded(name="a:1", path="/a", memory_bytes=10, gpu_bytes=4, context_tokens=4096),
            Loaded(name="b:1", path="/b", memory_bytes=20, gpu_bytes=20),
        )
    )
    owner = ProcessFacts(
        port=11434, cmdline=("ollama", "serve"), environment={"OLLAMA_DEBUG": "1"},
        children=(ollama_child("/a", "-c 8192 -np 2 --port 9001"), ollama_child("/b", "-np 1")),
    )  # fmt: skip
    facts = server_facts(OLLAMA, probe, owner, model="a:1")
    assert (facts.loaded_bytes, facts.loaded_gpu_bytes) == (10, 4)
    assert facts.loaded_models == ("a:1", "b:1")
    assert (facts.slots, facts.kv_cache_tokens) == (2, 8192)
    assert facts.unified_memory is False
    # One loaded since the last look: neither the others' sizes nor their options are its own.
    later = server_facts(OLLAMA, probe, owner, model="c:1")
    assert (later.loaded_bytes, later.gpu_layers, later.slots) == (None, None, None)
    newest = replace(owner, children=(*owner.children, ollama_child("/c", "-ngl 7 -np 1")))
    assert server_facts(OLLAMA, probe, newest, model="c:1").gpu_layers == 7


def test_ollama_that_holds_nothing_says_so() -> None:
    assert server_facts(OLLAMA, Probe(loaded=()), None).loaded_models == ()
    assert server_facts(OLLAMA, Probe(), None).loaded_models is None


def test_a_router_tells_the_flags_of_the_child_that_runs_the_model() -> None:
    argv = ("llama-server", "-m", "/m/a.gguf", "-np", "2", "-ngl", "20")
    loaded = Loaded(name="a", aliases=("small",), slots=2, context_tokens=4096, argv=argv)
    probe = Probe(models=("a", "b"), loaded=(loaded,))
    router = process("llama-server --models-dir /m -ngl 1", LLAMA_ARG_CACHE_TYPE_K="q8_0")
    facts = server_facts(LLAMA_SERVER, probe, router, model="small")
    assert (facts.gpu_layers, facts.kv_type_k, facts.kv_cache_tokens) == (20, "q8_0", 8192)
    # Of a model that is not loaded nothing is known, least of all by the router's own options.
    assert server_facts(LLAMA_SERVER, probe, router, model="b").gpu_layers is None


def test_unified_memory_is_known_where_the_environment_was_read() -> None:
    name = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"
    on = process("llama-server -c 1", **{name: "0"})  # any value counts
    assert server_facts(LLAMA_SERVER, ANSWERED, on).unified_memory is True
    off = process("llama-server -c 1", LLAMA_ARG_HOST="::")
    assert server_facts(LLAMA_SERVER, ANSWERED, off).unified_memory is False
    unread = process("llama-server -c 1")
    assert server_facts(LLAMA_SERVER, ANSWERED, unread).unified_memory is None
    assert server_facts(Identity(kind="vllm"), ANSWERED, off).unified_memory is None


@pytest.mark.parametrize(("line", "tokens"), [("-np 2", 4096), ("-np 2 -kvu", 2048), ("", 2048)])
def test_what_the_whole_cache_holds(line: str, tokens: int) -> None:
    facts = server_facts(LLAMA_SERVER, ANSWERED, process(f"llama-server {line}"))
    assert facts.kv_cache_tokens == tokens


def test_what_an_engine_says_of_its_own_options_counts() -> None:
    said = Flags(tensor_parallel=2, eager=True, kv_type_k="fp8", cpu_offload_bytes=0)
    probe = Probe(flags=said, kv_cache_tokens=20480, gpu_memory_ratio=0.8)
    facts = server_facts(Identity(kind="sglang"), probe, process("python -m sglang.launch_server"))
    assert (facts.tensor_parallel, facts.eager, facts.kv_type_k) == (2, True, "fp8")
    assert (facts.kv_cache_tokens, facts.gpu_memory_ratio) == (20480, 0.8)
    assert (facts.cpu_offload_bytes, facts.speculative, facts.gpu_layers) == (0, None, None)


def test_a_model_that_ollama_has_not_loaded_has_no_facts() -> None:
    probe = Probe(loaded=(Loaded(name="a:1", path="/a"), Loaded(name="b:1", path="/b")))
    assert loaded_model(probe, "c") is None
    assert loaded_model(probe, None) is None
    assert model_path(OLLAMA, probe, "b:1") == "/b"
    assert model_path(OLLAMA, probe, "c") is None


def test_what_an_engine_says_of_its_model() -> None:
    plain = Probe(models=("m",), quantisation="Q4_1", parameters=8, weight_bytes=4)
    assert told_model(plain, "m") == ModelFacts(
        name="m", quantisation="Q4_1", parameters=8, file_bytes=4
    )
    assert told_model(plain, "other") == ModelFacts(name="other")
    held = Probe(loaded=(Loaded(name="a:latest", path="/a", model=ModelFacts(layers=3)),))
    assert told_model(held, "a") == ModelFacts(name="a", path="/a", layers=3)
    assert told_model(held, "b") == ModelFacts(name="b")


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
