"""The commands to copy: for each engine that can run the model, with the context that fits."""

from pathlib import Path
from typing import Any

import pytest

from fakes.hf_folder import small_llama, write_folder
from slowtok.proxy.cli.fit.asked import FitOptions, question
from slowtok.proxy.cli.fit.launch import Launch, launches, launches_json
from slowtok.proxy.cli.fit.table import table


def ask(**asked: Any) -> dict[str, Launch]:
    about = question(FitOptions(**asked), None)
    return {each.engine: each for each in launches(about, table(about))}


def joined(launch: Launch) -> str:
    """Return the lines as a shell reads them."""
    return "\n".join(launch.lines).replace("\\\n ", "")


def test_the_longest_context_of_the_table_that_fits() -> None:
    found = ask(model="qwen3:8b", gpu="RTX 3060 12GB")

    assert (
        joined(found["llama-server"]) == "llama-server -m qwen3-8b-Q4_K_M.gguf  -c 32768 -ngl 999"
    )
    assert joined(found["Ollama"]) == (
        "OLLAMA_CONTEXT_LENGTH=32768 ollama serve\nollama run qwen3:8b"
    )
    assert "vLLM" not in found  # of 16 bits it does not fit, and vLLM puts nothing in RAM


def test_the_context_that_was_asked_for() -> None:
    found = ask(model="qwen3:8b", gpu="RTX 4090", context=8192)

    assert {each.context_tokens for each in found.values()} == {8192}
    assert found["vLLM"].quantisation == "F16"
    assert joined(found["vLLM"]) == "vllm serve Qwen/Qwen3-8B  --max-model-len 8192"


def test_no_more_context_than_the_model_was_trained_for() -> None:
    assert ask(model="qwen3:8b", gpu="RTX 4090", context=90_000)["Ollama"].context_tokens == 40_960


def test_what_does_not_fit_starts_with_the_layers_that_do() -> None:
    about = question(FitOptions(model="qwen3:32b", gpu="RTX 3060"), None)
    rows = table(about)
    layers = rows[0].cells[0].found.gpu_layers

    assert layers is not None
    assert 0 < layers < 64
    assert f"-c 4096 -ngl {layers}" in joined(launches(about, rows)[0])


def test_without_a_gpu_no_layers_are_put_on_one() -> None:
    found = ask(model="qwen3:8b", gpu="cpu")

    assert joined(found["llama-server"]).endswith("-ngl 0")
    assert "vLLM" not in found


def test_several_cards_and_a_quantised_cache() -> None:
    found = ask(model="gpt-oss:20b", gpu="RTX 4090", gpus=2, kv_type="q8_0")

    assert joined(found["llama-server"]).endswith("-ctk q8_0 -ctv q8_0")
    assert "OLLAMA_FLASH_ATTENTION=1" in joined(found["Ollama"])
    assert "OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve" in joined(found["Ollama"])
    assert joined(found["vLLM"]) == (
        "vllm serve openai/gpt-oss-20b  --max-model-len 131072 --tensor-parallel-size 2"
    )


def test_experts_in_ram() -> None:
    found = ask(model="gpt-oss:120b", gpu="RTX 4090", cpu_moe_layers=30)

    assert "--n-cpu-moe 30" in joined(found["llama-server"])


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "qwen3:8b", "quant": "Q6_K"},  # which tag of Ollama's has it is not known
        {"model": "Qwen3-8B", "quant": "Q6_K"},
        {"params": 8.0, "quant": "Q6_K"},
    ],
)
def test_ollama_needs_a_name_of_its_own(asked: dict[str, Any]) -> None:
    assert list(ask(gpu="RTX 4090", **asked)) == ["llama-server"]


def test_a_name_that_only_the_user_knows_is_in_capitals() -> None:
    found = ask(params=8.0, quant="FP8", gpu="RTX 4090")

    assert "-m MODEL.gguf" in joined(found["llama-server"])
    assert "vllm serve ORG/NAME" in joined(found["vLLM"])


def test_a_distilled_model_is_not_taken_for_its_base() -> None:
    assert "ORG/NAME" in joined(ask(model="deepseek-r1:8b", gpu="RTX 5090")["vLLM"])


def test_apples_gpus_have_no_vllm() -> None:
    assert "vLLM" not in ask(model="qwen3:8b", gpu="M4 Max 64GB")


def test_vllm_leaves_a_memory_that_it_shares_to_the_system() -> None:
    fitting = ask(model="gpt-oss:120b", gpu="DGX Spark", context=4096)
    too_large = ask(params=52.0, quant="BF16", gpu="DGX Spark")  # 97 GiB, and the buffers

    assert joined(fitting["vLLM"]).endswith("--max-model-len 4096  --gpu-memory-utilization 0.85")
    assert list(too_large) == ["llama-server"]


def test_a_folder_is_for_vllm(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a model", *small_llama(2))
    found = ask(model=str(folder), gpu="RTX 4090", context=4096)

    assert list(found) == ["vLLM"]
    assert joined(found["vLLM"]) == f"vllm serve '{folder}'  --max-model-len 4096"


def test_json_has_each_command_as_one_text() -> None:
    about = question(FitOptions(model="qwen3:8b", gpu="RTX 3060"), None)
    [first, second] = launches_json(launches(about, table(about)))

    assert first["engine"] == "llama-server"
    assert second == {
        "engine": "Ollama",
        "quantisation": "Q4_K_M",
        "context_tokens": 32_768,
        "command": "OLLAMA_CONTEXT_LENGTH=32768 ollama serve\nollama run qwen3:8b",
    }
