"""The steps of remedies: the value in each one makes the model fit."""

import re
from dataclasses import replace
from typing import get_args

import pytest

from fakes.cases import with_server, with_tokens
from fakes.gpu_cases import DEVICE, GIB, LLAMA_8B, MIB, SERVER, gpu_case
from fakes.memory_cases import (
    MIXTRAL,
    SPLIT_HOST,
    apple,
    card,
    context_oversized,
    model_too_big,
    ollama,
    partial_offload,
    vram_held_by_others,
)
from slowtok.detectors.analysis.placement.reasons import Reason, needed_bytes, reason_for
from slowtok.detectors.analysis.placement.remedies import (
    GPU_BUILDS,
    GPU_CHECKS,
    experts_in_ram,
    fewest_expert_layers,
    fitting_context,
    fitting_layers,
    load_again,
    more_layers,
    sensible_context,
    smaller_context,
    smaller_kv,
    smaller_weights,
    steps,
    stop_others,
    use_the_gpu,
)
from slowtok.detectors.analysis.placement.where import placement
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.machine import GpuProcess, GpuVendor
from slowtok.detectors.causes.memory import partial_offload as partial_offload_detector


def reason_of(case: Case) -> Reason:
    return reason_for(case, placement(case))


def numbers(text: str | None) -> list[float]:
    assert text is not None
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def test_steps_are_one_sentence() -> None:
    assert steps("stop it", None, "use less") == "Stop it; or use less."


def test_the_context_fits_and_leaves_what_the_engine_leaves() -> None:
    case = context_oversized()
    reason = reason_of(case)
    tokens = int(numbers(smaller_context(case, reason))[0])

    assert reason.used_tokens is not None
    assert reason.used_tokens <= tokens
    assert needed_bytes(case, placement(case), tokens) + GIB <= reason.room_bytes
    larger = sensible_context(tokens + 1) or 2 * tokens
    assert needed_bytes(case, placement(case), larger * 3 // 2) + GIB > reason.room_bytes


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (1_500, 0),
        (3_500, 2_048),
        (7_000, 6_144),
        (16_998, 16_384),
        (25_000, 24_576),
        (140_000, 131_072),
    ],
)
def test_a_context_is_of_a_size_that_people_set(most: int, said: int) -> None:
    assert sensible_context(most) == said


def test_fewer_layers_keep_their_experts_where_more_do_than_have_to() -> None:
    case = gpu_case(
        model=MIXTRAL,
        server=replace(SERVER, gpu_layers=99, cpu_moe_layers=30),
        gpu=card(4_000),
        host=SPLIT_HOST,
    )
    finding = partial_offload_detector.detect(case)
    fewest = fewest_expert_layers(case, reason_of(case))

    assert finding is not None
    assert fewest is not None
    assert 0 < fewest < 30
    assert finding.remedy == f"Start llama-server with --n-cpu-moe {fewest}."


def test_an_engine_is_not_to_be_installed_again_where_others_hold_the_memory() -> None:
    hog = GpuProcess(pid=9, name="python3", memory_bytes=22 * GIB)
    case = gpu_case(server=ollama(8192, loaded=5.6, on_gpu=0.0), gpu=card(0, hog), host=SPLIT_HOST)

    assert use_the_gpu(case) == "First remove what keeps it off the GPU (vram-held-by-others)."


@pytest.mark.parametrize(
    ("kind", "slots", "said"),
    [
        ("llama-server", 4, "-c 16384"),  # over all slots
        ("ollama", 4, "num_ctx to 4096"),  # for each
        ("vllm", 1, "--max-model-len"),
        ("lm-studio", 1, "set the context to 16384 tokens"),
    ],
)
def test_the_context_is_said_as_the_engine_counts_it(kind: str, slots: int, said: str) -> None:
    case = context_oversized()
    reason = reason_of(case)
    server = replace(case.server, kind=kind, slots=slots, kv_cache_tokens=65_536)

    assert said in (smaller_context(replace(case, server=server), reason) or "")


def test_no_context_is_advised_where_none_would_do() -> None:
    case = vram_held_by_others()

    assert smaller_context(case, reason_of(case)) is None


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        pytest.param(16_500, 24_576, id="the next usual size above what was used"),
        pytest.param(24_300, 32_768, id="which may leave less than engines do"),
        pytest.param(32_600, None, id="none: a usual size that holds it does not fit"),
        pytest.param(36_000, None, id="none: what was used does not fit itself"),
    ],
)
def test_a_context_that_was_used_nearly_up_to_the_room(prompt: int, tokens: int | None) -> None:
    case = with_tokens(context_oversized(), prompt=prompt, completion=300)
    reason = reason_of(case)

    assert fitting_context(case, reason) == tokens
    if tokens is not None:
        assert needed_bytes(case, placement(case), tokens) <= reason.room_bytes


def test_nothing_of_the_context_is_advised_for_a_model_of_unknown_geometry() -> None:
    case = context_oversized()
    unknown = replace(case, model=replace(case.model, kv_bytes_per_token=None))

    assert smaller_context(unknown, reason_of(case)) is None


@pytest.mark.parametrize(
    ("kind", "kv", "said"),
    [
        ("llama-server", "f16", "-ctk q8_0 -ctv q8_0 with -fa on), which frees 0.5 GiB"),
        ("ollama", "f16", "OLLAMA_KV_CACHE_TYPE=q8_0 with OLLAMA_FLASH_ATTENTION=1"),
        ("vllm", "auto", "--kv-cache-dtype fp8"),
        ("llama-server", "q8_0", None),
        ("llama-server", "q4_0", None),
    ],
)
def test_a_smaller_kv_cache(kind: str, kv: str, said: str | None) -> None:
    case = gpu_case(server=replace(SERVER, kind=kind, kv_type_k=kv, kv_type_v=kv))
    step = smaller_kv(case)

    assert step is None if said is None else said in (step or "")


def test_a_short_context_is_not_worth_it() -> None:
    assert smaller_kv(gpu_case(server=replace(SERVER, context_tokens=2048))) is None


def test_the_quantisation_fits_beside_kv_cache_and_buffers() -> None:
    case = model_too_big()
    reason = reason_of(case)
    bits = numbers(smaller_weights(case, reason, reason.needed_for_used_bytes))[0]
    assert case.model.parameters is not None
    assert case.model.file_bytes is not None
    saved = case.model.file_bytes - bits / 8 * case.model.parameters

    assert reason.needed_for_used_bytes - saved + GIB == pytest.approx(
        reason.room_bytes, abs=0.3 * GIB
    )


def test_without_parameters_the_size_of_the_file_is_said() -> None:
    case = model_too_big()
    unknown = replace(case, model=replace(case.model, parameters=None))

    assert "a file of at most 18.8 GiB" in (
        smaller_weights(unknown, reason_of(case), reason_of(case).needed_for_used_bytes) or ""
    )


def test_more_bits_than_weights_are_ever_given_are_not_said() -> None:
    case = model_too_big()
    few = replace(case, model=replace(case.model, parameters=(case.model.parameters or 0) // 6))
    reason = reason_of(few)

    said = smaller_weights(few, reason, reason.needed_for_used_bytes)
    assert said == "take a smaller quantisation, a file of at most 18.8 GiB"


def test_without_a_size_any_smaller_one_is_advised() -> None:
    case = model_too_big()
    unknown = replace(case, model=replace(case.model, file_bytes=None))

    assert smaller_weights(unknown, reason_of(case), 30 * GIB) == "take a smaller quantisation"


def test_a_quantisation_is_not_advised_where_it_fits_or_where_none_does() -> None:
    case = model_too_big()
    reason = reason_of(case)

    assert smaller_weights(case, reason, 10 * GIB) is None
    assert smaller_weights(case, reason, 60 * GIB) is None


def test_experts_of_so_many_layers_make_room() -> None:
    case = gpu_case(
        model=MIXTRAL, server=replace(SERVER, gpu_layers=20), gpu=card(16_000), host=SPLIT_HOST
    )
    reason = reason_of(case)
    layers = numbers(experts_in_ram(case, reason))[1]
    moved = layers * 26_440_000_000 / 32

    assert reason.needed_bytes - moved + GIB <= reason.room_bytes
    assert experts_in_ram(gpu_case(), reason) is None
    assert experts_in_ram(replace(case, server=ollama(8192)), reason) is None


@pytest.mark.parametrize(
    ("held_mib", "other_gib", "layers"),
    [(4_000, 0, 33), (4_000, 19, 21), (4_000, 18, 28)],
)
def test_layers_that_fit_into_what_is_free(held_mib: int, other_gib: int, layers: int) -> None:
    other = GpuProcess(pid=5, name="game", memory_bytes=other_gib * GIB)
    case = gpu_case(
        server=replace(SERVER, gpu_layers=20), gpu=card(held_mib, other), host=SPLIT_HOST
    )

    assert fitting_layers(case, placement(case)) == layers


def test_more_layers_as_the_engine_names_them() -> None:
    case = partial_offload()

    assert more_layers(case, placement(case)) == "start llama-server with -ngl 33"
    by_ollama = replace(case, server=ollama(8192, loaded=6.4, on_gpu=3.2))
    assert "num_gpu to 33" in more_layers(by_ollama, placement(by_ollama))
    by_sglang = with_server(case, kind="sglang")
    assert more_layers(by_sglang, placement(by_sglang)) == "let the engine put 33 layers on the GPU"


def test_nobody_is_named_where_the_driver_lists_nobody() -> None:
    case = partial_offload()

    assert stop_others(case, placement(case)).startswith("close the other programs")


def test_whom_to_stop() -> None:
    small = GpuProcess(pid=1, name="Xorg", memory_bytes=60 * MIB)
    large = [GpuProcess(pid=i, name=f"p{i}", memory_bytes=i * GIB) for i in (2, 3, 4, 5)]
    case = gpu_case(gpu=card(3_000, small, *large))

    said = stop_others(case, placement(case))

    assert said.startswith("stop p5 with pid 5 and 5,120 MiB, p4 with")
    assert "Xorg" not in said
    assert "p2" not in said


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("llama-server", "restart llama-server"),
        ("ollama", "'ollama stop llama-3-8b'"),
        ("vllm", "restart vLLM"),
        ("lm-studio", "unload the model"),
    ],
)
def test_loading_again(kind: str, said: str) -> None:
    assert said in load_again(gpu_case(server=replace(SERVER, kind=kind)))


def test_a_name_that_is_not_ascii_is_said_in_ascii() -> None:
    case = gpu_case(model=replace(LLAMA_8B, name="qwen-\u5343\u95ee"), server=ollama(8192))

    assert load_again(case).isascii()


def test_each_maker_has_words_for_its_driver_and_its_build() -> None:
    assert set(GPU_CHECKS) == set(GPU_BUILDS) == set(get_args(GpuVendor))


def test_the_gpu_of_each_maker() -> None:
    assert "nvidia-smi" in use_the_gpu(gpu_case())
    assert "Metal" in use_the_gpu(gpu_case(device=apple()))
    assert "nvidia-smi" in use_the_gpu(gpu_case(device=replace(DEVICE, gpus=())))
