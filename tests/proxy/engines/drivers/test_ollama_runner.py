"""Command lines as Ollama 0.33 and 0.9 build them (llm/llama_server.go, llm/server.go)."""

import pytest

from slowtok.proxy.engines.drivers.ollama_runner import find_runner, runner_flags, runner_url
from slowtok.proxy.engines.probing.facts import Flags
from slowtok.proxy.sampling.host.identity import select_variables
from slowtok.proxy.sampling.protocol import ChildProcess, ProcessFacts

A, B = "/usr/share/ollama/.ollama/models/blobs/sha256-a", "/blobs/sha256-b"
SERVER = "/usr/lib/ollama/llama-server"
OLLAMA = "/usr/local/bin/ollama"
LINE_033 = (
    f"{SERVER} --model {A} --port 37893 --host 127.0.0.1 --no-webui --offline -c 65536 -np 2 "
    "--log-verbosity 4 --no-log-prefix --no-log-timestamps --no-jinja --chat-template chatml "
    f"--mmproj {A} --load-mode dio --cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on "
    "-b 2048 -ub 2048 --context-shift --keep 4"
)
LINE_09 = (
    f"{OLLAMA} runner --model {A} --ctx-size 8192 --batch-size 512 --n-gpu-layers 20 --threads 6 "
    "--flash-attn --kv-cache-type q8_0 --no-mmap --parallel 2 --port 34567"
)
LINE_011 = f"{OLLAMA} runner --ollama-engine --model {A} --port 34568"
LINE_MLX = f"{OLLAMA} runner --mlx-engine --model qwen3:8b --port 34569"


def owner(*lines: str, **environment: str) -> ProcessFacts:
    children = (ChildProcess(pid=n, cmdline=tuple(line.split())) for n, line in enumerate(lines))
    return ProcessFacts(port=11434, children=tuple(children), environment=environment)


def test_children_that_run_no_model() -> None:
    process = owner("", f"{SERVER} --list-devices", f"{OLLAMA} run llama3 --model x", "sh -c date")
    assert find_runner(process, None) is None
    assert find_runner(process, A) is None


def test_of_two_children_neither_is_guessed() -> None:
    process = owner(LINE_033, LINE_033.replace(A, B))
    assert find_runner(process, None) is None
    assert find_runner(process, "/blobs/neither") is None


def test_a_child_is_told_by_its_model_file() -> None:
    process = owner(LINE_033.replace(A, B), LINE_033)
    found = find_runner(process, A)
    assert found is not None
    assert found.pid == 1


def test_a_model_that_is_in_no_list_yet_is_the_one_that_is_no_other() -> None:
    process = owner(LINE_033.replace(A, B), LINE_033)
    found = find_runner(process, None, foreign=[B])
    assert found is not None
    assert found.pid == 1
    assert find_runner(owner(LINE_033), None, foreign=[A]) is None


@pytest.mark.parametrize("line", [LINE_09, LINE_011, LINE_MLX])
def test_only_a_llama_server_can_be_asked(line: str) -> None:
    (child,) = owner(line).children
    assert runner_url(child) is None


def test_a_llama_server_is_asked_at_its_own_port() -> None:
    (child,) = owner(LINE_033).children
    assert runner_url(child) == "http://127.0.0.1:37893"


def test_a_child_since_030() -> None:
    process = owner(LINE_033, LLAMA_ARG_N_CPU_MOE="8")  # it inherits the environment
    flags = runner_flags(process, find_runner(process, A))
    assert flags == Flags(
        model_path=A, gpu_layers=-1, cpu_moe_layers=8, context_tokens=65536, context_shared=False,
        slots=2, batch_tokens=2048, micro_batch_tokens=2048, flash_attention="on",
        kv_type_k="q8_0", kv_type_v="q8_0", kv_on_gpu=True, memory_mapped=False,
        prefix_caching=True, speculative=False, split_mode="layer",
    )  # fmt: skip


def test_a_child_of_09() -> None:
    process = owner(LINE_09)
    assert runner_flags(process, find_runner(process, A)) == Flags(
        model_path=A, gpu_layers=20, threads=6, context_tokens=8192, slots=2, batch_tokens=512,
        flash_attention="on", kv_type_k="q8_0", kv_type_v="q8_0", memory_mapped=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "flash_attention"), [("1", "on"), ("false", "off"), ("", None), (None, None)]
)
def test_a_child_without_options_has_those_of_the_environment(
    asked: str | None, flash_attention: str | None
) -> None:
    said = {} if asked is None else {"OLLAMA_FLASH_ATTENTION": asked}
    process = owner(LINE_011, OLLAMA_KV_CACHE_TYPE="q4_0", **said)
    assert runner_flags(process, find_runner(process, A)) == Flags(
        model_path=A, kv_type_k="q4_0", kv_type_v="q4_0", flash_attention=flash_attention
    )


def test_an_unseen_child_leaves_only_the_environment() -> None:
    assert runner_flags(owner(), None) is None
    flags = runner_flags(owner(OLLAMA_KV_CACHE_TYPE="q8_0"), None)
    assert flags == Flags(kv_type_k="q8_0", kv_type_v="q8_0")


def test_what_sets_ollama_up_is_kept_of_its_environment_and_no_key() -> None:
    kept = {
        f"OLLAMA_{name}": "1"
        for name in (
            "NUM_PARALLEL", "KV_CACHE_TYPE", "FLASH_ATTENTION", "CONTEXT_LENGTH", "KEEP_ALIVE",
            "MAX_LOADED_MODELS", "MAX_QUEUE", "LLM_LIBRARY", "SCHED_SPREAD", "GPU_OVERHEAD",
        )
    }  # fmt: skip
    assert select_variables({**kept, "OLLAMA_API_KEY": "x", "OLLAMA_AUTH": "x"}) == kept
