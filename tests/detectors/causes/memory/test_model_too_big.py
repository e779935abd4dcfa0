from dataclasses import replace

import pytest

from fakes.cases import healthy, storage_paging, with_envelope, with_phases, with_server
from fakes.cause_tests import fires, found, lacks, quiet
from fakes.gpu_cases import (
    DEVICE,
    GIB,
    LLAMA_8B,
    RTX_3090,
    SERVER,
    gpu_case,
    with_card,
    with_model,
    with_readings,
)
from fakes.memory_cases import (
    RTX_4060,
    SPLIT_HOST,
    card,
    context_oversized,
    memory_untold,
    ollama,
    partial_offload,
    reload_degradation,
    vram_held_by_others,
)
from fakes.memory_cases import model_too_big as firing
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import ModelFacts
from slowtok.detectors.causes.memory import model_too_big

LLAMA_70B = ModelFacts(
    name="llama3:70b",
    quantisation="Q4_0",
    file_bytes=39_970_000_000,
    read_bytes=39_380_000_000,
    parameters=70_550_000_000,
    layers=80,
    kv_bytes_per_token=327_680.0,
)


def paging(*, file_gib: float, ram_gib: float) -> Case:
    """Measured paging, with a model of this size in so much RAM; one token then reads it all."""
    case = storage_paging()
    file_bytes = int(file_gib * GIB)
    big = replace(case.model, file_bytes=file_bytes, read_bytes=file_bytes)
    device = replace(case.device, ram_bytes=int(ram_gib * GIB))
    return replace(case, model=big, device=device)


def llama_70b() -> Case:
    """ollama/ollama#4531: `ollama ps` says 42 % / 58 %, and the GPU is 0 % busy in the answer.

    41 % without the embedding table, which is not read. The card (24 GB), the rate and RAM of
    45 GB/s are inferred.
    """
    return gpu_case(
        ms_per_token=700.0,
        completion=100,
        model=LLAMA_70B,
        server=ollama(2048, loaded=40.2, on_gpu=40.2 * 0.58),
        gpu=card(23_600, busy_ratio=0.0),
        host=SPLIT_HOST,
    )


def two_cards_with_room() -> Case:
    """ollama/ollama#3078: 65 of 81 layers, 18 of 24 GB used on each of two GPUs.

    The cards (here RTX 3090) and the context are inferred.
    """
    case = gpu_case(
        ms_per_token=1000.0,
        completion=60,
        model=replace(LLAMA_70B, file_bytes=40_000_000_000, read_bytes=39_300_000_000),
        server=replace(ollama(2048), gpu_layers=65, gpu_indices=(0, 1)),
        device=replace(DEVICE, gpus=(RTX_3090, replace(RTX_3090, index=1))),
        gpu=card(17_200, busy_ratio=0.3),
        host=SPLIT_HOST,
    )
    both = tuple(replace(s, index=index) for s in case.gpu for index in (0, 1))
    return replace(case, gpu=both)


QUIET = [
    pytest.param(storage_paging(), id="read from the disk although it is smaller than RAM"),
    pytest.param(
        paging(file_gib=39, ram_gib=64),
        id="ollama#3054: 39 GB in 64 GB of RAM: memory mapping, not size",
    ),
    pytest.param(
        replace(healthy(), model=paging(file_gib=30, ram_gib=8).model),
        id="more than RAM, but nothing is read from the disk",
    ),
    pytest.param(partial_offload(), id="it would fit, the engine was told otherwise"),
    pytest.param(context_oversized(), id="it would fit with less context"),
    pytest.param(vram_held_by_others(), id="it would fit without the others"),
    pytest.param(reload_degradation(), id="it did fit"),
    pytest.param(with_server(firing(), gpu_layers=0), id="told to use no GPU"),
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(two_cards_with_room(), id="ollama#3078: two GPUs that have room for all of it"),
]

FIRING = [
    pytest.param(
        firing(),
        26.6 * 0.80,
        "needs at least 28.5 GiB",
        "at most 3.5 bits per weight, such as IQ3_XXS",
        id="ollama#3301: Mixtral on 24 GB",
    ),
    pytest.param(llama_70b(), 69.3 * 0.93, "41 %", "at most 2.5 bits per weight", id="ollama#4531"),
    pytest.param(
        # 53 GB needed by the thread; the share and the rate are inferred
        gpu_case(
            ms_per_token=1100.0,
            completion=60,
            model=replace(LLAMA_70B, file_bytes=42_520_000_000, read_bytes=41_900_000_000),
            server=ollama(8192, loaded=49.0, on_gpu=21.5),
            gpu=card(22_500, busy_ratio=0.02),
            host=SPLIT_HOST,
        ),
        64.9 * 0.94,
        "the GPU has 23.7 GiB",
        "use a GPU with more memory",
        id="ollama#9753: 53 GB on 24, GPU 2 % busy",
    ),
    pytest.param(
        # a model of 3.8 GB on a card with 3 GB, inferred from 43 % / 57 %
        with_card(
            gpu_case(
                ms_per_token=1000.0,
                completion=60,
                model=ModelFacts(
                    name="codellama:7b",
                    file_bytes=3_826_000_000,
                    read_bytes=3_750_000_000,
                    parameters=6_738_000_000,
                    layers=32,
                    kv_bytes_per_token=524_288.0,
                ),
                server=ollama(2048, loaded=4.9, on_gpu=2.8),
                device=replace(DEVICE, ram_bandwidth_bytes_per_s=10e9),
                gpu=card(2_700, total=3 * GIB),
                host=SPLIT_HOST,
            ),
            total_bytes=3 * GIB,
        ),
        36.4,
        "the GPU has 2.7 GiB",
        "GPU with more memory",
        id="ollama#4668: 43 % / 57 %, about 1 token/s",
    ),
    pytest.param(
        gpu_case(
            ms_per_token=330.0,
            completion=100,
            model=replace(firing().model, name="mixtral"),
            server=replace(SERVER, gpu_layers=6, context_tokens=4096),
            device=replace(DEVICE, gpus=(RTX_4060,), ram_bandwidth_bytes_per_s=50e9),
            gpu=card(5_800, total=8 * GIB),
            host=SPLIT_HOST,
        ),
        27.3,
        "the GPU has 7.7 GiB",
        "-ngl 999 --n-cpu-moe 27, which leaves only experts in RAM",
        id="experts can stay in RAM",
    ),
    pytest.param(
        paging(file_gib=20, ram_gib=16),
        47.84 * 0.938,
        "needs 20.2 GiB and the machine has 16.0 GiB",
        "at most 13 GiB",
        id="llama.cpp#711: 20 GB in 16 GB of RAM",
    ),
]

MISSING = [
    pytest.param(
        memory_untold(),
        "GPU memory of the server",
        id="neither the engine nor the driver tells",
    ),
    pytest.param(with_model(firing(), file_bytes=None), "size of the model file", id="no size"),
    pytest.param(
        with_card(with_readings(firing(), total_bytes=None), total_bytes=None),
        "memory of the GPU",
        id="the GPU does not tell its memory",
    ),
    pytest.param(
        with_envelope(firing(), expected_tps=None),
        "decode rate expected of this GPU",
        id="no expectation",
    ),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
    pytest.param(
        replace(paging(file_gib=20, ram_gib=16), host=()),
        "host samples during decode",
        id="larger than RAM, and no samples",
    ),
]


test_quiet = quiet(model_too_big, QUIET)
test_fires = fires(model_too_big, "lost_s summary remedy", FIRING, phase="decode", rel=0.04)
test_names_the_missing_fact = lacks(model_too_big, MISSING)


def test_the_margin_that_engines_leave_makes_it_likely_not_sure() -> None:
    tight = gpu_case(
        ms_per_token=90.0,
        completion=400,
        model=replace(LLAMA_8B, file_bytes=24_400_000_000, read_bytes=24_000_000_000),
        server=ollama(1024),
        gpu=card(20_500),
        host=SPLIT_HOST,
    )
    finding = found(model_too_big, tight)

    assert "of which the engine leaves some free" in finding.summary
    assert finding.confidence < 0.9
