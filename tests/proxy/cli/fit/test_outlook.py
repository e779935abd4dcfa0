"""What was asked, as an answer: numbers, names, files, folders, claims."""

import math
from pathlib import Path
from typing import Any

import pytest

from fakes.hf_folder import small_llama, write_folder
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts
from slowtok.proxy.cli.fit.asked import AskError, FitOptions, question
from slowtok.proxy.cli.fit.outlook import outlook, outlook_json

QWEN: dict[str, Any] = {"model": "Qwen3-8B", "quant": "Q4_K_M", "gpu": "RTX 5090"}
LLAMA: dict[str, Any] = {
    "params": 8.03, "quant": "Q4_K_M", "layers": 32, "kv_heads": 8, "head_dim": 128,
}  # fmt: skip


def ask(claim: float | None = None, present: DeviceFacts | None = None, **more: Any) -> Any:
    return outlook_json(outlook(question(FitOptions(**more), present), claim))


def test_seventeen_thousand_tokens_per_second_are_46_times_too_many() -> None:
    found = ask(17_000.0, **QWEN)
    assert found["claim"]["possibility"] == "impossible"
    assert found["claim"]["ceiling_ratio"] == pytest.approx(46, abs=1)
    assert found["fits"] is True


@pytest.mark.parametrize(
    ("rate", "word"), [(221.7, "plausible"), (90, "slow"), (365, "unheard-of"), (400, "impossible")]
)
def test_claims(rate: float, word: str) -> None:
    """221.7 was measured on that card with that model."""
    assert ask(rate, **QWEN)["claim"]["possibility"] == word


def test_a_claim_where_no_ceiling_is_known() -> None:
    claim = ask(50.0, gpu="cpu", **LLAMA)["claim"]
    assert claim["possibility"] == "unknown"
    assert "RAM" in claim["because"]


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("4090 Laptop GPU", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("7900 XTX", "AMD Radeon RX 7900 XTX"),
        ("M4 Pro", "Apple M4 Pro"),
        ("GB10", "NVIDIA GB10"),
        ("DGX Spark", "NVIDIA GB10"),
        ("DGX Spark 128GB", "NVIDIA GB10"),
        ("RTX 3060 12GB", "NVIDIA GeForce RTX 3060"),
        ("4060 Ti (16 GB)", "NVIDIA GeForce RTX 4060 Ti"),
        ("Jetson AGX Orin 64GB", "NVIDIA Jetson AGX Orin 64GB"),
        ("Laptop 4060", "NVIDIA GeForce RTX 4060 Laptop GPU"),
        ("RTX 4070 Mobile", "NVIDIA GeForce RTX 4070 Laptop GPU"),
        ("RTX 2000 Ada laptop", "NVIDIA RTX 2000 Ada Generation Laptop GPU"),
        ("2 x RTX 3090", "2 x NVIDIA GeForce RTX 3090"),
        ("2x3090", "2 x NVIDIA GeForce RTX 3090"),
        ("Mac Mini M4 Pro 48GB", "Apple M4 Pro"),
        ("MacBook Pro M3 Max 128GB", "Apple M3 Max (40-core)"),
        ("Mac Studio M3 Ultra 512GB", "Apple M3 Ultra"),
        ("RTX 2000 Ada", "NVIDIA RTX 2000 Ada Generation"),
        ("A100 80GB", "NVIDIA A100 80GB PCIe"),  # the slower of two that are nearly alike
        ("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
    ],
)
def test_a_gpu_is_known_by_what_it_is_called(gpu: str, name: str) -> None:
    assert ask(gpu=gpu, **LLAMA)["setup"].endswith(f" on {name}")


def test_the_same_card_with_another_memory() -> None:
    """The one with 8 GB has a narrower bus, which its name does not tell: hence a wide band."""
    usual, small = (ask(gpu=f"RTX 3060 {size}GB", **LLAMA) for size in (12, 8))
    again = question(FitOptions(gpu="RTX 3060 8GB", vram=7.5, **LLAMA), None)

    assert usual["setup"] == small["setup"]
    assert "12 GB assumed" not in str(usual)
    assert "the bandwidth of the one with 12 GB assumed" in str(small)
    told, other = usual["decode_tps"], small["decode_tps"]
    assert other["low"] / told["low"] == pytest.approx(0.65, rel=0.01)
    assert other["high"] / told["high"] == pytest.approx(1.35, rel=0.01)
    assert (usual["vram_gib"]["available"], small["vram_gib"]["available"]) == (12, 8)
    gpus = again.facts.device.gpus
    assert gpus is not None
    assert gpus[0].total_bytes == 7.5 * 2**30


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "no model was named"),
        ({"model": "x.gguf", "gpu": "4090"}, "x.gguf: no such file or folder"),
        ({"model": "Nobodys-9B", "gpu": "4090"}, "Nobodys-9B: there is no such file, and"),
        ({"model": "Qwen4-8B", "gpu": "4090"}, "did you mean Qwen3-8B"),
        ({"gpu": "RTX 9999", **LLAMA}, "--gpu RTX 9999: slowtok's table of GPUs"),
        ({"gpu": "H100", **LLAMA}, "did you mean NVIDIA H100 PCIe or "),
        ({"gpu": "2 x RTX 3090", "gpus": 3, **LLAMA}, "--gpus 3 says another number"),
        ({"gpu": "4090", **LLAMA, "layers": 0}, "--layers 0: must be more than 0"),
        ({"gpu": "4090", **LLAMA, "params": -8}, "--params -8: must be more than 0"),
        ({"gpu": "4090", **LLAMA, "params": math.nan}, "--params nan: must be more than 0"),
        ({"gpu": "4090", **LLAMA, "vram": math.inf}, "--vram inf: must be a finite number"),
        ({"gpu": "4090", **LLAMA, "kv_type": "q3"}, "--kv-type q3: not one of f32, f16"),
        (
            {"gpu": "4090", **LLAMA, "context": 100, "depth": 200},
            "--depth 200: must be at most the context of 100",
        ),
        ({"gpu": "4090", **LLAMA, "depth": -2}, "--depth -2"),
        ({"gpu": "4090", **LLAMA, "experts": 8}, "--experts 8: give --experts-used, too"),
    ],
)
def test_what_cannot_be_used_is_named(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(AskError) as refused:
        ask(**asked)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_card_of_no_table_by_its_bandwidth() -> None:
    found = ask(gpu="NVIDIA GeForce RTX 6090", bandwidth=2500.0, vram=48.0, **LLAMA)
    assert found["decode_tps"]["ceiling"] == pytest.approx(2500e9 / 4.86e9, rel=0.05)
    assert found["vram_gib"]["available"] == 48


@pytest.mark.parametrize(
    ("context", "gib"), [(4096, 0.5), (8192, 1.0), (32768, 4.0)]
)  # llama.cpp prints KV self size = 512.00 MiB for 4,096 tokens of it
def test_the_guides_are_wrong_about_the_cache_of_llama_3_8b(context: int, gib: float) -> None:
    """They say 2 GB at 4,096 tokens: that is Llama-2-7B's, which has four times the KV heads."""
    assert ask(gpu="4090", context=context, **LLAMA)["vram_gib"]["kv_cache"] == gib
    older: dict[str, Any] = {
        "params": 6.738,
        "quant": "Q4_0",
        "layers": 32,
        "kv_heads": 32,
        "head_dim": 128,
    }
    assert ask(gpu="4090", context=4096, **older)["vram_gib"]["kv_cache"] == 2.0


def test_the_guides_are_wrong_about_the_cache_of_llama_3_70b() -> None:
    large: dict[str, Any] = {"model": "Llama-3-70B", "quant": "Q4_K_M"}
    assert ask(gpu="A100-SXM4-80GB", context=4096, **large)["vram_gib"]["kv_cache"] == 1.25


def test_a_smaller_cache_type_makes_room_for_a_longer_context() -> None:
    plain, small = (ask(gpu="3060", kv_type=kind, **LLAMA) for kind in ("f16", "q8_0"))
    assert small["vram_gib"]["kv_cache"] == pytest.approx(0.531 * 0.5, rel=0.01)
    assert small["most_context_tokens"] > 1.8 * plain["most_context_tokens"]
    assert ask(gpu="3060", context=plain["most_context_tokens"], **LLAMA)["fits"] is True


def test_what_does_not_fit_says_how_much_does() -> None:
    large: dict[str, Any] = {
        "model": "Qwen3-32B",
        "quant": "Q4_K_M",
        "gpu": "4090",
        "context": 32768,
    }
    found = ask(**large)
    assert found["fits"] is False
    assert 0 < found["most_gpu_layers"] < found["layers"] == 64
    assert found["gpu_layers"] == found["most_gpu_layers"]
    assert ask(**(large | {"context": found["most_context_tokens"]}))["fits"] is True
    two = ask(**(large | {"gpus": 2}))
    assert two["fits"] is True
    assert two["decode_tps"]["low"] > found["decode_tps"]["high"]


def test_experts_without_a_number_of_active_parameters() -> None:
    mixture: dict[str, Any] = {"params": 55.0, "quant": "Q4_K_M", "gpu": "RTX A6000", "layers": 48}
    found = ask(experts=64, experts_used=8, **mixture)
    dense = ask(**mixture)
    told = ask(active_params=55 * 0.16, **mixture)
    assert found["decode_tps"]["ceiling"] == pytest.approx(told["decode_tps"]["ceiling"], rel=0.1)
    assert found["decode_tps"]["ceiling"] > 4 * dense["decode_tps"]["ceiling"]


def test_the_gpus_that_are_here() -> None:
    card = GpuFacts(
        index=0, name="NVIDIA GeForce RTX 3090", total_bytes=24 << 30,
        bandwidth_bytes_per_s=936e9,
    )  # fmt: skip
    here = DeviceFacts(gpus=(card, card), ram_bytes=64 << 30, ram_bandwidth_bytes_per_s=40e9)
    found = ask(present=here, **LLAMA)
    assert found["setup"].endswith("on 2 x NVIDIA GeForce RTX 3090")
    assert ask(present=here, gpus=1, **LLAMA)["vram_gib"]["available"] == 24
    split = ask(present=here, gpus=1, gpu_layers=16, **LLAMA)
    assert split["decode_tps"]["expected"] < found["decode_tps"]["low"]
    assert not any("assumed: a wide band" in line for line in split["basis"])


def test_a_machine_without_a_gpu() -> None:
    here = DeviceFacts(
        gpus=(),
        ram_bytes=16 << 30,
        ram_bandwidth_bytes_per_s=40e9,
        ram_bandwidth_source="given",
        cpu_physical_cores=8,
    )
    found = ask(present=here, **LLAMA)
    assert found["setup"].endswith("on the CPU")
    assert found["fits"] is True
    assert found["decode_tps"]["ceiling"] == pytest.approx(40e9 / 4.86e9, rel=0.1)


def test_a_folder_is_read_itself(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small", *small_llama(2))
    found = ask(model=str(folder), gpu="3060")
    assert found["setup"].startswith("small ")
    assert found["vram_gib"]["kv_cache"] == round(2 * 2 * 32 * 2 * 4096 / 2**30, 3)
    assert found["layers"] == 2


def test_a_models_own_files_tell_the_context_that_it_was_trained_for(tmp_path: Path) -> None:
    config, tensors = small_llama(2)
    long_name = tmp_path / "Llama-3-8B"  # whose name says 8,192
    folder = write_folder(long_name, config | {"max_position_embeddings": 2048}, tensors)

    assert ask(model=str(folder), gpu="3060")["most_context_tokens"] == 2048


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(AskError, match="cannot be read as a Hugging Face folder"):
        ask(model=str(tmp_path), gpu="3060")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("qwen3:8b", "Q4_K_M on"),
        ("gpt-oss:20b", "MXFP4 on"),
        ("library/qwen3:8b-q8_0", "Q8_0 on"),
        ("llama3.1:8b-instruct-fp16", "F16 on"),
    ],
)
def test_ollamas_names_tell_the_type_of_the_weights(name: str, title: str) -> None:
    found = ask(model=name, gpu="RTX 4090")

    assert title in found["setup"]
    assert any("no type of weights named" in line for line in found["basis"]) is (
        "-q" not in name and "-fp" not in name
    )


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("llama3.1", "llama3.1:8b Q4_K_M on"),
        ("deepseek r1", "deepseek-r1:8b Q4_K_M on"),
        ("deepseek-r1:latest", "deepseek-r1:8b Q4_K_M on"),
        ("gpt-oss", "gpt-oss:20b MXFP4 on"),
    ],
)
def test_the_name_of_a_family_is_its_usual_size(name: str, title: str) -> None:
    found, sized = (ask(model=each, gpu="RTX 4090") for each in (name, title.split(maxsplit=1)[0]))

    assert title in found["setup"]
    assert any("no size named" in line for line in found["basis"])
    assert found["decode_tps"] == sized["decode_tps"]


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Qwen3-8B", "Q4_K_M"),
        ("Qwen/Qwen3-8B", "Q4_K_M"),
        ("gpt-oss-20b", "MXFP4"),
        ("Qwen3-8B-Q6_K", "Q6_K"),
    ],
)
def test_a_published_name_without_its_type_has_the_usual_one(name: str, quant: str) -> None:
    found, given = ask(model=name, gpu="RTX 4090"), ask(model=name, quant=quant, gpu="RTX 4090")
    assumed = [line for line in found["basis"] if "no type of weights named" in line]

    assert bool(assumed) is not name.endswith(quant)
    assert found["decode_tps"]["expected"] == given["decode_tps"]["expected"]


def test_a_type_that_was_given_stays() -> None:
    assert "Q6_K on" in ask(model="qwen3:8b", quant="Q6_K", gpu="RTX 4090")["setup"]


def test_a_distilled_model_has_the_shape_of_its_base() -> None:
    found, base = (
        ask(model=name, quant="Q4_K_M", gpu="RTX 4090")
        for name in ("deepseek r1 14b", "Qwen2.5-14B")
    )

    assert found["decode_tps"] == base["decode_tps"]


def test_no_more_context_than_the_model_was_trained_for() -> None:
    assert ask(model="qwen3:8b", gpu="RTX 5090")["most_context_tokens"] == 40_960
    assert ask(model="qwen3:8b", gpu="RTX 3060")["most_context_tokens"] < 40_960


def test_what_fits_has_never_less_context_than_was_asked_for() -> None:
    """With 3.1 GiB kept back from a card of 12, 3,000 tokens fitted where 4,096 did."""
    found = ask(model="qwen3:14b", gpu="RTX 3060")

    assert found["fits"] is True
    assert found["most_context_tokens"] >= 4096


@pytest.mark.parametrize("model", ["qwen3:14b", "gpt-oss:20b", "gemma3:12b"])
def test_the_most_context_fits_and_more_does_not(model: str) -> None:
    most = ask(model=model, gpu="RTX 3060", gpus=2, vram=7.5)["most_context_tokens"]

    fits = [
        ask(model=model, gpu="RTX 3060", gpus=2, vram=7.5, context=tokens)["fits"]
        for tokens in (most, most + 2000)
    ]
    assert most > 1000
    assert fits == [True, None]


def test_each_of_several_gpus_has_buffers_of_its_own() -> None:
    one, two = (ask(gpu="RTX 4090", gpus=count, **LLAMA)["vram_gib"] for count in (1, 2))

    assert two["buffers_high"] == 2 * one["buffers_high"]
    assert two["needed_high"] - one["needed_high"] == pytest.approx(one["buffers_high"], abs=0.01)


@pytest.mark.parametrize(
    ("gpu", "gib"), [("M4 Pro 24GB", 16), ("M4 Pro 48GB", 36), ("M4 Max 64GB", 48)]
)
def test_macos_lets_the_gpu_have_a_share_of_the_memory(gpu: str, gib: float) -> None:
    found = ask(gpu=gpu, **LLAMA)

    assert found["vram_gib"]["available"] == gib
    assert any(line.startswith(f"macOS lets the GPU have {gib} of") for line in found["basis"])
    assert not any("GB assumed" in line for line in found["basis"])


def test_the_mac_that_is_here_tells_only_its_memory() -> None:
    chip = GpuFacts(index=0, name="Apple M4", vendor="apple", unified_memory=True)
    here = DeviceFacts(gpus=(chip,), ram_bytes=24 << 30)

    assert ask(present=here, **LLAMA)["vram_gib"]["available"] == 16


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("M4 Max 36GB", "Apple M4 Max (32-core)"),
        ("Apple M4 Max 128 GB", "Apple M4 Max (40-core)"),
        ("m3 max 96gb", "Apple M3 Max (30-core)"),
    ],
)
def test_which_gpu_a_max_chip_has_goes_by_its_memory(gpu: str, name: str) -> None:
    assert ask(gpu=gpu, **LLAMA)["setup"].endswith(f" on {name}")


def test_of_128_gb_a_dgx_spark_has_what_cuda_tells() -> None:
    assert ask(gpu="DGX Spark 128 GB", **LLAMA)["vram_gib"]["available"] == 121.7


def test_no_rate_is_expected_above_the_ceiling() -> None:
    """A few layers in a RAM of unknown speed: the band is wide, and the GPU still bounds it."""
    found = ask(model="llama3.1:70b", gpu="M4 Pro 48GB")

    assert found["fits"] is False
    assert found["decode_tps"]["high"] <= found["decode_tps"]["ceiling"]
