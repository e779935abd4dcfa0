from pathlib import Path

import gguf
import numpy as np
import orjson
import pytest

from slowtok.proxy.engines.probing.reply import ProbeReply

RECORDED = Path(__file__).with_name("recorded")


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """Write the smallest file that has facts: one matrix of 10 x 32 half-precision values."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_head_count(2)
    writer.add_tensor("token_embd.weight", np.zeros((10, 32), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Recorded:
    """Replies of real servers: llama.cpp's (October 2026), vLLM 0.32 and two that stand before."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def __call__(self, what: str) -> ProbeReply:
        lines = (RECORDED / f"{self.engine}.{what}.jsonl").read_text(encoding="utf-8").splitlines()
        reads = [orjson.loads(line)["bytes"] for line in lines[1:]]
        head, _, body = "".join(reads).encode().partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        pairs = (line.partition(": ") for line in rest)
        headers = {name.lower(): value for name, _, value in pairs}
        return ProbeReply(status=int(first.split()[1]), headers=headers, body=body)


@pytest.fixture
def llama_server_reply() -> Recorded:
    return Recorded("llama-server-2026.10")


@pytest.fixture
def llama_router_reply() -> Recorded:
    return Recorded("llama-router-2026.10")


@pytest.fixture
def vllm_reply() -> Recorded:
    return Recorded("vllm-0.32")


@pytest.fixture
def llama_swap_reply() -> Recorded:
    return Recorded("llama-swap-250")


@pytest.fixture
def litellm_reply() -> Recorded:
    return Recorded("litellm-1.106")
