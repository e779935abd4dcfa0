import pytest

from slowtok.proxy.sampling.host.redaction import keyless, redact_arguments, redact_variable

SECRET = "s3cr3t-Value"


@pytest.mark.parametrize(
    "line",
    [
        "llama-server -m model.gguf -c 8192 -ngl 99 -t 8 --flash-attn on --cache-type-k q8_0",
        "vllm serve Qwen/Qwen3-8B --max-num-batched-tokens 8192 --tokenizer-mode auto",
        "vllm serve m --tokenizer Qwen/Qwen3-8B --enable-auto-tool-choice --max-tokens=4096",
        "llama-server -m m.gguf --keep 5 --no-mmap --slots --metrics -np 4 --port 8080",
        "ollama serve",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redact_arguments(line.split(" ")) == line.split(" ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["llama-server", "--api-key", SECRET, "-m", "m.gguf"],
        ["llama-server", f"--api-key={SECRET}"],
        ["llama-server", "--api-key", f"-{SECRET}"],
        ["llama-server", "-hft", SECRET],
        ["llama-server", "--hf-token", SECRET],
        ["vllm", "serve", "m", "--api-key", "first", SECRET, "--port", "8000"],
        ["server", "--apiKey", SECRET],
        ["server", "--admin_password", SECRET],
        ["server", "--client-secret", SECRET],
        ["server", "--auth", f"user:{SECRET}"],
        ["env", f"HF_TOKEN={SECRET}", "llama-server"],
        ["sh", "-c", f"exec llama-server -m m.gguf --api-key {SECRET} --port 1"],
        ["sh", "-c", f"API_KEY={SECRET} llama-server -m m.gguf"],
        ["vllm", "--config", f'{{"api_key": "{SECRET}", "size": 3}}'],
        ["server", "--proxy", f"http://user:{SECRET}@host/"],
        ["server", "--header", f"Authorization: Bearer {SECRET}"],
        ["server", "--note", "hf_" + SECRET.replace("-", "")],
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_a_secret_never_stays(arguments: list[str]) -> None:
    clean = " ".join(redact_arguments(arguments))

    assert SECRET not in clean
    assert SECRET.replace("-", "") not in clean
    assert "***" in clean


def test_what_follows_a_secret_stays() -> None:
    clean = redact_arguments(["llama-server", "--api-key", SECRET, "-m", "m.gguf", "--port", "1"])

    assert clean == ["llama-server", "--api-key", "***", "-m", "m.gguf", "--port", "1"]


def test_a_switch_whose_name_looks_secret_hides_no_option() -> None:
    clean = redact_arguments(["server", "--disable-auth", "--threads", "8"])

    assert clean == ["server", "--disable-auth", "--threads", "8"]


def test_variables() -> None:
    assert redact_variable("OLLAMA_NUM_PARALLEL", "4") == "4"
    assert redact_variable("OLLAMA_HOST", "http://me:pw@0.0.0.0") == "http://***@0.0.0.0"
    assert redact_variable("VLLM_API_KEY", SECRET) is None
    assert redact_variable("LLAMA_ARG_HF_TOKEN", SECRET) is None


def test_a_child_inherits_no_secret() -> None:
    environ = {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/usr/lib/wsl/lib",
        "SLOWTOK_API_KEY": "mine",
        "SLOWTOK_BASELINES_URL": "redis://user:mine@host",
        "OPENAI_API_KEY": "sk-mine",
        "HF_TOKEN": "mine",
    }

    assert keyless(environ) == {"PATH": "/bin", "LD_LIBRARY_PATH": "/usr/lib/wsl/lib"}
