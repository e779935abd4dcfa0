"""Where a model lies, by each source, and what makes a source count."""

from dataclasses import replace

import pytest

from fakes.cases import with_device, with_server
from fakes.gpu_cases import (
    DEVICE,
    GIB,
    LLAMA_8B,
    MIB,
    RTX_3090,
    SERVER,
    gpu_case,
    with_card,
    with_readings,
)
from fakes.memory_cases import MIXTRAL, SPLIT_HOST, apple, card, ollama
from slowtok.detectors.analysis.placement.where import (
    holds_some,
    off_gpu,
    placement,
    room_bytes,
    serving_gpus,
    vram_held,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.finding import Missing
from slowtok.detectors.case.machine import GpuProcess

DECIDES = replace(SERVER, gpu_layers=-1)
HUGE = replace(LLAMA_8B, file_bytes=60 * GIB, read_bytes=58 * GIB)


def split(server: ServerFacts, *, held_mib: int = 6_700, model: ModelFacts = LLAMA_8B) -> Case:
    return gpu_case(
        ms_per_token=60.0, server=server, model=model, gpu=card(held_mib), host=SPLIT_HOST
    )


@pytest.mark.parametrize(
    ("server", "model", "held_mib", "source", "weights", "kv"),
    [
        pytest.param(
            ollama(8192, loaded=6.4, on_gpu=3.2), LLAMA_8B, 3_500, "engine", 0.477, 0.477,
            id="half by the engine's word, the embedding table left out",
        ),
        pytest.param(
            ollama(8192, loaded=6.4, on_gpu=6.4), LLAMA_8B, 6_700, "memory", 0.0, 0.0,
            id="all by the engine's word, and the memory agrees",
        ),
        pytest.param(
            ollama(8192, loaded=6.4, on_gpu=6.4), LLAMA_8B, 300, "memory", 1.0, 1.0,
            id="ollama#8623: all by the engine's word, and nothing is there",
        ),
        pytest.param(
            replace(SERVER, gpu_layers=20), LLAMA_8B, 4_000, "command line", 0.394, 0.394,
            id="20 of 33 layers",
        ),
        pytest.param(
            replace(SERVER, gpu_layers=99), LLAMA_8B, 6_700, "memory", 0.0, 0.0, id="all layers"
        ),
        pytest.param(
            replace(SERVER, kv_on_gpu=False), LLAMA_8B, 5_700, "command line", 0.0, 1.0,
            id="the KV cache alone in RAM",
        ),
        pytest.param(
            replace(DECIDES, cpu_moe_layers=999), MIXTRAL, 3_000, "command line", 0.887, 0.0,
            id="all experts in RAM: most of what a token reads",
        ),
        pytest.param(
            replace(DECIDES, cpu_moe_layers=8), MIXTRAL, 18_000, "command line", 0.222, 0.0,
            id="the experts of a quarter of the layers",
        ),
        pytest.param(
            DECIDES, LLAMA_8B, 3_400, "memory", 0.49, 0.49, id="half by the memory that it holds"
        ),
        pytest.param(
            replace(DECIDES, context_tokens=65_536), LLAMA_8B, 6_700, "memory", 0.52, 0.52,
            id="room for the weights, but not for its KV cache",
        ),
        pytest.param(
            replace(SERVER, kind="vllm", gpu_layers=None, cpu_offload_bytes=GIB), LLAMA_8B, 22_000,
            "command line", 0.218, 0.0, id="vLLM was told so",
        ),
        pytest.param(
            replace(SERVER, kind="vllm", gpu_layers=None), LLAMA_8B, 3_000, "command line", 0.0,
            0.0, id="vLLM was not told so: it has all of it on the GPU, whatever is seen",
        ),
    ],
)  # fmt: skip
def test_sources(
    server: ServerFacts, model: ModelFacts, held_mib: int, source: str, weights: float, kv: float
) -> None:
    placed = placement(split(server, held_mib=held_mib, model=model))

    assert placed.source == source
    assert placed.weights_ratio == pytest.approx(weights, abs=0.01)
    assert placed.kv_ratio == pytest.approx(kv, abs=0.01)


def test_more_than_the_gpus_have_is_elsewhere() -> None:
    hidden = with_readings(split(DECIDES, model=HUGE), processes=None)

    placed = placement(hidden)

    assert placed.source == "size"
    assert placed.cpu_ratio == pytest.approx(0.6, abs=0.03)


def test_without_any_source_it_is_unknown() -> None:
    with pytest.raises(Missing, match="GPU memory of the server"):
        placement(with_readings(split(DECIDES), processes=None))


@pytest.mark.parametrize(
    ("case", "found"),
    [
        pytest.param(split(replace(SERVER, gpu_layers=20)), True, id="a part is in RAM"),
        pytest.param(split(replace(SERVER, gpu_layers=0)), False, id="told to use no GPU"),
        pytest.param(
            with_server(split(replace(SERVER, gpu_layers=20)), local=False), False, id="elsewhere"
        ),
        pytest.param(
            with_device(split(replace(SERVER, gpu_layers=20)), gpus=()), False, id="no GPU"
        ),
        pytest.param(
            split(replace(SERVER, gpu_layers=33)), False, id="33 of 33 layers with the output"
        ),
    ],
)
def test_what_is_off_the_gpu(case: Case, *, found: bool) -> None:
    assert (off_gpu(case) is not None) is found


def two(first: int | None, second: int | None, *, mine: tuple[int, ...] | None) -> Case:
    """Two GPUs with so many MiB of the server on each."""
    case = gpu_case(
        server=replace(SERVER, gpu_indices=mine),
        device=replace(DEVICE, gpus=(RTX_3090, replace(RTX_3090, index=1, uuid="GPU-2"))),
    )
    samples = tuple(
        replace(card(held), at_s=s.at_s, index=index)
        for s in case.gpu
        for index, held in ((0, first), (1, second))
        if held is not None
    )
    return replace(case, gpu=samples)


@pytest.mark.parametrize(
    ("case", "server_mib"),
    [
        (two(3_000, 4_000, mine=(0, 1)), 7_000),
        (two(3_000, 4_000, mine=(1,)), 4_000),
        (two(3_000, 4_000, mine=None), 7_000),
        (two(0, 0, mine=()), 0),  # uses none: all of them might have served
        (two(3_000, None, mine=(0, 1)), None),  # one of them does not tell
    ],
)
def test_the_memory_of_several_gpus(case: Case, server_mib: int | None) -> None:
    held = vram_held(case)

    assert (None if held is None else held.server_bytes) == (
        None if server_mib is None else server_mib * MIB
    )


def test_of_a_gpu_in_slices_only_the_slices_serve() -> None:
    slices = [replace(RTX_3090, index=i, uuid=f"MIG-{i}", partition_of="GPU-3090") for i in (1, 2)]
    case = with_device(with_server(gpu_case(), gpu_indices=None), gpus=(RTX_3090, *slices))

    assert [gpu.index for gpu in serving_gpus(case)] == [1, 2]


@pytest.mark.parametrize(
    ("case", "room_gib"),
    [
        (gpu_case(), 24 - 300 / 1024),
        (replace(gpu_case(), gpu=()), 24.0),
        (replace(gpu_case(device=apple()), gpu=()), 48.0),
        (replace(gpu_case(device=replace(apple(), ram_bytes=24 << 30)), gpu=()), 16.0),
        (with_card(replace(gpu_case(), gpu=()), total_bytes=None), None),
    ],
)
def test_room(case: Case, room_gib: float | None) -> None:
    room = room_bytes(case, vram_held(case))

    assert room == (None if room_gib is None else pytest.approx(room_gib * GIB))


@pytest.mark.parametrize(
    ("case", "holds"),
    [
        (gpu_case(), True),
        (with_readings(gpu_case(), processes=()), None),  # 7 GiB in use on nobody's name
        (with_readings(gpu_case(), processes=(), free_bytes=24 * GIB - 500 * MIB), False),
        (with_readings(gpu_case(), processes=None, free_bytes=24 * GIB - 400 * MIB), False),
        (
            with_readings(
                gpu_case(), processes=(GpuProcess(pid=1, memory_bytes=None, is_server=True),)
            ),
            None,
        ),
        (
            with_readings(gpu_case(server=ollama(8192, loaded=6.4, on_gpu=3.0)), processes=None),
            True,
        ),
        (replace(gpu_case(device=apple()), gpu=()), False),
    ],
)
def test_holds_some(case: Case, *, holds: bool | None) -> None:
    if holds is None:
        with pytest.raises(Missing):
            holds_some(case)
    else:
        assert holds_some(case) is holds
