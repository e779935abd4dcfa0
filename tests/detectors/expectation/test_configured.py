from dataclasses import replace

import pytest

from fakes.hardware import (
    LLAMA_3_8B,
    LLAMA_CPP,
    QWEN3_30B_A3B,
    RTX_3060,
    RTX_3090,
    RTX_4090,
    SMOLLM2,
    TWO_CORES,
    band,
    model,
)
from slowtok.detectors.case.case import Range
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts
from slowtok.detectors.expectation.envelope import expect

SLOW_RAM = replace(RTX_4090, ram_bandwidth_bytes_per_s=50e9)


def configured(
    server: ServerFacts, facts: ModelFacts = LLAMA_3_8B, device: DeviceFacts = SLOW_RAM
) -> Range | None:
    return expect(facts, device, server, 100).as_configured


def test_a_whole_model_alone_has_nothing_beside_its_reference() -> None:
    for layers in (None, -1, 32, 999):
        server = replace(LLAMA_CPP, gpu_layers=layers)
        assert expect(LLAMA_3_8B, RTX_4090, server, 100).as_configured is None


def test_a_tenth_in_ram_costs_most_of_the_time() -> None:
    device = replace(RTX_4090, ram_bandwidth_bytes_per_s=50e9)
    split = expect(LLAMA_3_8B, device, replace(LLAMA_CPP, gpu_layers=30), 100)
    whole = expect(LLAMA_3_8B, device, LLAMA_CPP, 100)
    assert split.decode == whole.decode
    assert split.as_configured is not None
    assert split.as_configured.high < band(whole).low
    assert split.as_configured.low < split.as_configured.high


def test_a_split_without_a_measured_ram_is_not_guessed() -> None:
    split = expect(LLAMA_3_8B, RTX_4090, replace(LLAMA_CPP, gpu_layers=20), 100)
    assert split.as_configured is None
    assert split.decode is not None


@pytest.mark.parametrize(("facts", "device"), [(LLAMA_3_8B, RTX_4090), (QWEN3_30B_A3B, RTX_3090)])
def test_a_share_of_a_batch_moves_only_what_is_configured(
    facts: ModelFacts, device: DeviceFacts
) -> None:
    alone = expect(facts, device, LLAMA_CPP, 4096)
    shared = expect(facts, device, LLAMA_CPP, 4096, sequences=4)
    assert shared.decode == alone.decode
    assert shared.as_configured is not None
    assert shared.as_configured.low < band(alone).low
    assert shared.as_configured.high < 0.93 * (alone.ceiling_tps or 0)


def test_a_batch_on_a_cpu_shares_the_cores() -> None:
    shared = expect(SMOLLM2, TWO_CORES, LLAMA_CPP, 64, sequences=2).as_configured
    alone = band(expect(SMOLLM2, TWO_CORES, LLAMA_CPP, 64))
    assert shared is not None
    assert shared.low == pytest.approx(alone.low / 2, rel=0.1)


@pytest.mark.parametrize(
    "facts",
    [
        {"loaded_bytes": 6_000_000_000, "loaded_gpu_bytes": 6_000_000_000},
        {"loaded_bytes": 6_000_000_000, "loaded_gpu_bytes": 6_000_000_000, "gpu_layers": 5},
        {"cpu_moe_layers": 0},
        {"kv_on_gpu": True},
    ],
)
def test_what_is_wholly_on_the_gpu_by_the_engines_word_is_not_split(facts: dict[str, int]) -> None:
    assert configured(replace(LLAMA_CPP, **facts)) is None  # type: ignore[arg-type]


def test_the_engines_word_on_its_memory_says_how_it_is_split() -> None:
    by_bytes = configured(replace(LLAMA_CPP, loaded_bytes=3300, loaded_gpu_bytes=2000))
    by_layers = configured(replace(LLAMA_CPP, gpu_layers=20))
    assert by_bytes is not None
    assert by_layers is not None
    assert by_bytes.low == pytest.approx(by_layers.low)


def test_a_model_larger_than_the_card_is_split_by_what_fits() -> None:
    facts = replace(LLAMA_3_8B, file_bytes=4_920_000_000)
    [gpu] = SLOW_RAM.gpus or ()
    for total_bytes, is_split in ((8 * 2**30, False), (4 * 2**30, True), (None, False)):
        device = replace(SLOW_RAM, gpus=(replace(gpu, total_bytes=total_bytes),))
        assert (configured(LLAMA_CPP, facts, device) is not None) == is_split


def test_kv_in_ram_costs_more_the_deeper_it_gets() -> None:
    server = replace(LLAMA_CPP, kv_on_gpu=False)
    shares = []
    for context in (500, 8000):
        envelope = expect(LLAMA_3_8B, SLOW_RAM, server, context)
        assert envelope.as_configured is not None
        shares.append(envelope.as_configured.low / band(envelope).low)
    assert shares[1] < shares[0] < 1


def test_experts_kept_in_ram_are_read_from_there() -> None:
    """Qwen3-30B-A3B on an RTX 2080, experts of 36 of 48 layers in RAM, gave 36.7 tokens/s."""
    gpu = GpuFacts(index=0, name="NVIDIA GeForce RTX 2080", bandwidth_bytes_per_s=448e9)
    device = DeviceFacts(gpus=(gpu,), ram_bandwidth_bytes_per_s=51.2e9)
    split = configured(replace(LLAMA_CPP, cpu_moe_layers=36), QWEN3_30B_A3B, device)
    assert split is not None
    assert split.low < 36.7 < split.high


def gpus(count: int, name: str = "NVIDIA GeForce RTX 3090", gb_s: float = 936) -> DeviceFacts:
    return DeviceFacts(
        gpus=tuple(
            GpuFacts(index=i, name=name, bandwidth_bytes_per_s=gb_s * 1e9) for i in range(count)
        )
    )


# Gemma-4-12B AWQ with vLLM on RTX 3090 without NVLink, held to 220 W each.
@pytest.mark.parametrize(("count", "measured_tps"), [(2, 88.0), (4, 105.0)])
def test_tensor_parallel_gpus_are_held_to_what_they_give_together(
    count: int, measured_tps: float
) -> None:
    server = ServerFacts(kind="vllm", tensor_parallel=count)
    envelope = expect(model(7.29, 48, 64), gpus(count), server, 640)
    alone = expect(model(7.29, 48, 64), gpus(1), server, 640)
    assert band(envelope).low < measured_tps < band(envelope).high
    assert (envelope.expected_tps or 0) > (alone.expected_tps or 0)
    assert (envelope.expected_tps or 0) < count * (alone.expected_tps or 0)
    assert any("slowtok bench" in note for note in envelope.because)


def test_layers_on_several_cards_give_what_one_gives() -> None:
    """Llama-3-8B Q4_K_M on RTX 4090: 127.7 tokens/s on one, 122.6 on two, 116.1 on eight."""
    server = replace(LLAMA_CPP, split_mode="layer", version="b2824")
    many = expect(LLAMA_3_8B, gpus(8, "NVIDIA GeForce RTX 4090", 1008), server, 512)
    one = expect(LLAMA_3_8B, gpus(1, "NVIDIA GeForce RTX 4090", 1008), server, 512)
    assert many.decode == one.decode
    assert many.ceiling_tps == one.ceiling_tps
    assert many.as_configured is not None
    assert many.as_configured.low < band(one).low < 116.1 < many.as_configured.high


def test_the_gpus_that_the_server_says_it_uses_are_the_reference() -> None:
    both = DeviceFacts(gpus=(*(RTX_4090.gpus or ()), replace((RTX_3060.gpus or ())[0], index=1)))
    for index, alone in ((0, RTX_4090), (1, RTX_3060)):
        server = replace(LLAMA_CPP, gpu_indices=(index,))
        assert (
            expect(LLAMA_3_8B, both, server, 9).decode
            == expect(LLAMA_3_8B, alone, LLAMA_CPP, 9).decode
        )
