import os
import sys
import time

import pytest

from fakes.listening_process import running
from slowtok.proxy.sampling.host.identity import (
    MAX_CHARS,
    describe,
    parse_arguments,
    parse_environment,
)
from slowtok.proxy.sampling.host.port_owner import PortListener, find_listener, find_sockets

ENVIRONMENT = (
    b"HOME=/root\0PATH=/usr/bin\0LLAMA_ARG_THREADS=8\0LLAMA_ARG_API_KEY=hidden\0"
    b"OLLAMA_NUM_PARALLEL=2\0GGML_CUDA_FORCE_MMQ=1\0CUDA_VISIBLE_DEVICES=0,1\0"
    b"HIP_VISIBLE_DEVICES=0\0ROCR_VISIBLE_DEVICES=1\0VLLM_USE_V1=1\0VLLM_API_KEY=hidden\0"
    b"HF_TOKEN=hidden\0OPENAI_API_KEY=hidden\0"
)


def test_only_what_sets_an_engine_up_is_kept() -> None:
    assert parse_environment(ENVIRONMENT) == {
        "HOME": "/root",  # where the model cache lies by default
        "LLAMA_ARG_THREADS": "8",
        "OLLAMA_NUM_PARALLEL": "2",
        "GGML_CUDA_FORCE_MMQ": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HIP_VISIBLE_DEVICES": "0",
        "ROCR_VISIBLE_DEVICES": "1",
        "VLLM_USE_V1": "1",
    }


def test_nothing_readable_is_nothing() -> None:
    assert parse_environment(b"") == {}
    assert parse_arguments(b"") == []


def test_empty_arguments_keep_their_place() -> None:
    assert parse_arguments(b"llama-server\0--prompt\0\0-t\x008\0") == [
        "llama-server",
        "--prompt",
        "",
        "-t",
        "8",
    ]


def test_size_is_bounded() -> None:
    arguments = parse_arguments(b"\0".join([b"x" * 10_000] * 1000))

    assert len(arguments) == 300
    assert max(map(len, arguments)) == MAX_CHARS


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc here")
def test_a_real_server_describes_itself_without_its_secrets() -> None:
    env = os.environ | {"LLAMA_ARG_THREADS": "3", "LLAMA_ARG_API_KEY": "hidden"}
    with running("0", "alone", "--api-key", "hidden", env=env) as server:
        found = find_listener(find_sockets(server.port), server.port)
        assert isinstance(found, PortListener)
        line = describe(server.port, found, [found.pid])

    assert line["pid"] == server.pid
    assert line["cmdline"][-2:] == ["--api-key", "***"]
    assert line["environment"]["LLAMA_ARG_THREADS"] == "3"
    assert "hidden" not in str(line)
    assert line["created_unix_s"] == pytest.approx(time.time(), abs=10)
