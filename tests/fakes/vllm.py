"""A real vLLM for tests, with a model made on the spot: two layers of random weights."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx

from fakes.running import wait_until_healthy
from slowtok.proxy.cli.demo.children import free_port

EXECUTABLE = os.environ.get("TEST_VLLM")
WHY_NOT = "TEST_VLLM does not name a vllm executable (CONTRIBUTING.md says how to get one)"
START_S = 300.0  # it imports for half a minute on a busy machine
MODEL_S = 120.0
STOP_S = 30.0
CONTEXT = 8192

# Run by vLLM's own Python. Its tokens are ASCII, so that each of them shows as soon as it is there.
MAKE_MODEL = r"""
import string, sys
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
letters = [pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(c)[0][0]
           for c in string.ascii_letters + string.digits + string.punctuation + " \n"]
tokenizer.train_from_iterator(
    ["the quick brown fox jumps over the lazy dog"],
    trainers.BpeTrainer(vocab_size=160, special_tokens=["<end>"], initial_alphabet=letters),
)
template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", chat_template=template
)
torch.manual_seed(1)
config = LlamaConfig(
    vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=8192,
    eos_token_id=0, bos_token_id=0, pad_token_id=0, tie_word_embeddings=True,
)
model = LlamaForCausalLM(config).to(torch.bfloat16)
model.get_input_embeddings().weight.data[0] = 0.0  # <end> is never the likeliest: it has no text
model.save_pretrained(sys.argv[1])
fast.save_pretrained(sys.argv[1])
"""


class RunningVllm:
    """A vLLM that listens at `url`; `pid` is its parent process, which serves the API."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid

    def count(self, name: str) -> float:
        """Return one of its counters or gauges, summed over labels."""
        page = httpx.get(f"{self.url}/metrics", timeout=30).text
        found = re.findall(rf"^vllm:{name}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE)
        assert found, name
        return sum(map(float, found))


def make_model(folder: Path) -> None:
    """Write a model into `folder` that vLLM serves in milliseconds a token."""
    assert EXECUTABLE is not None
    python = Path(EXECUTABLE).with_name("python")
    command = [str(python), "-c", MAKE_MODEL, str(folder)]
    made = subprocess.run(command, capture_output=True, timeout=MODEL_S, check=False)
    assert made.returncode == 0, made.stderr.decode()


@contextlib.contextmanager
def real_vllm(model: Path, name: str, *options: str) -> Iterator[RunningVllm]:
    """Serve a model under a name until the block ends."""
    assert EXECUTABLE is not None
    port, folder = free_port(), Path(EXECUTABLE).parent
    command = [EXECUTABLE, "serve", str(model), "--served-model-name", name, "--port", str(port)]
    command += ["--host", "127.0.0.1", "--max-model-len", str(CONTEXT), "--enforce-eager", *options]
    environment = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "OMP_NUM_THREADS": "1",
    }
    with (
        (model.parent / f"{name}.log").open("wb") as log,
        subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_healthy(f"{url}/health", process, START_S)
            yield RunningVllm(url, process.pid)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its children, should they outlive it
