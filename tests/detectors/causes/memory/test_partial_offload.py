from dataclasses import replace

import pytest

from fakes.cases import storage_paging, with_device, with_envelope, with_host, with_phases
from fakes.cause_tests import fires, found, lacks, missing_fact, quiet
from fakes.gpu_cases import (
    DEVICE,
    GIB,
    GPU_HOST,
    LLAMA_8B,
    SERVER,
    gpu_case,
    with_model,
    with_readings,
)
from fakes.memory_cases import (
    MIXTRAL,
    QWEN_7B,
    SPLIT_HOST,
    apple,
    card,
    context_oversized,
    memory_untold,
    model_too_big,
    ollama,
)
from fakes.memory_cases import partial_offload as firing
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.memory import partial_offload

VLLM = replace(SERVER, kind="vllm", gpu_layers=None, kv_cache_tokens=100_000, gpu_memory_ratio=0.92)
ALL_BY_MEMORY = replace(SERVER, gpu_layers=None, kv_on_gpu=True)


def with_server(before: Case, **changes: object) -> Case:
    return replace(before, server=replace(before.server, **changes))  # type: ignore[arg-type]


def half_in_memory(cores: float) -> Case:
    """A llama-server that decides itself, and holds half of what it needs."""
    host = replace(SPLIT_HOST, server_cpu_cores=cores)
    server = replace(SERVER, gpu_layers=-1)
    return gpu_case(ms_per_token=90.0, completion=400, server=server, gpu=card(3_400), host=host)


def mixture(**server: object) -> Case:
    """A model with experts on a card with 24 GiB."""
    facts = replace(SERVER, gpu_layers=-1, **server)  # type: ignore[arg-type]
    return gpu_case(
        ms_per_token=110.0,
        completion=400,
        model=replace(MIXTRAL, file_bytes=18_000_000_000, read_bytes=4_920_000_000),
        server=facts,
        gpu=card(3_000),
        host=SPLIT_HOST,
    )


QUIET = [
    pytest.param(storage_paging(), id="no GPU, weights from the disk"),
    pytest.param(gpu_case(server=ALL_BY_MEMORY), id="all of it by the memory it holds"),
    pytest.param(
        gpu_case(server=ollama(8192, loaded=6.0, on_gpu=6.0)), id="Ollama: 100 % on the GPU"
    ),
    pytest.param(
        gpu_case(server=ollama(8192, loaded=6.28, on_gpu=6.0)),
        id="Ollama counts the embedding table, which is never read, as beside the GPU",
    ),
    pytest.param(with_server(firing(), gpu_layers=0), id="told to use no GPU"),
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(
        gpu_case(server=VLLM, gpu=card(22_500, busy_ratio=0.97)),
        id="vLLM fills the GPU on purpose",
    ),
    pytest.param(
        gpu_case(ms_per_token=40.0, server=VLLM, gpu=card(3_000)),
        id="vLLM never splits unless it is told to",
    ),
    pytest.param(
        gpu_case(ms_per_token=40.0, host=GPU_HOST, gpu=card(6_700)),
        id="one busy thread and a waiting GPU, but all of it is there: something else",
    ),
    pytest.param(
        half_in_memory(cores=1.0), id="less memory than computed, but the CPU rests: wrong sums"
    ),
    pytest.param(
        with_server(firing(), gpu_layers=-1, loaded_bytes=6 * GIB, loaded_gpu_bytes=0),
        id="nothing is on the GPU: cpu-fallback",
    ),
    pytest.param(
        gpu_case(
            ms_per_token=60.0, model=replace(LLAMA_8B, file_bytes=30 * GIB, read_bytes=28 * GIB)
        ),
        id="more than the GPU has, and the CPU rests: the GPU fetches it",
    ),
]

FIRING = [
    pytest.param(firing(), 29.925 * 0.895, "20 of 33 layers", "-ngl 33.", id="told by -ngl"),
    pytest.param(
        model_too_big(),
        26.6 * 0.80,
        "Ollama left 7.5 GiB of the model off the GPU when it was loaded",
        "model-too-big",
        id="ollama#3301: 23 of 33 layers, 15 tokens/s",
    ),
    pytest.param(
        context_oversized(), 22.2, "33 %", "context-oversized", id="clicky-windows#18: 35 % / 65 %"
    ),
    pytest.param(
        # required 23.5 GiB by Ollama's own estimate, 18,505 MiB in use, 6 GiB stay free
        gpu_case(
            ms_per_token=18.0,
            server=replace(ollama(80_000), gpu_layers=31),
            gpu=card(17_700, busy_ratio=0.5),
            host=SPLIT_HOST,
        ),
        17.982 * 0.56,
        "although all of it would fit",
        "Set num_gpu to 33",
        id="ollama#5821: 31 of 33 layers beside 6 GiB that stay free",
    ),
    pytest.param(
        half_in_memory(cores=7.8),
        35.91 * 0.91,
        "llama-server left",
        "-ngl",
        id="by the memory that it holds and the busy CPU",
    ),
    pytest.param(
        mixture(cpu_moe_layers=999),
        43.89 * 0.914,
        "told to keep all experts in RAM although all of it would fit",
        "without --n-cpu-moe",
        id="experts kept in RAM",
    ),
    pytest.param(
        gpu_case(
            ms_per_token=30.0,
            prompt=7000,
            server=replace(SERVER, kv_on_gpu=False),
            gpu=card(5_600),
            host=SPLIT_HOST,
        ),
        29.97 * 0.70,
        "told to keep the KV cache in RAM",
        "without --no-kv-offload",
        id="KV cache in RAM (-nkvo)",
    ),
    pytest.param(
        gpu_case(
            ms_per_token=170.0,
            completion=400,
            server=replace(VLLM, cpu_offload_bytes=4 * GIB),
            gpu=card(22_000, busy_ratio=0.97),
        ),
        67.83 * 0.93,
        "vLLM was told to keep 4 GiB in RAM",
        "without --cpu-offload-gb",
        id="vLLM told so: the GPU fetches it over its link",
    ),
    pytest.param(
        # 24 GiB are too few whatever the engine says; only totals are visible
        with_readings(
            gpu_case(
                ms_per_token=250.0,
                completion=300,
                model=replace(
                    LLAMA_8B, file_bytes=30 * GIB, read_bytes=28 * GIB, parameters=60_000_000_000
                ),
                server=replace(SERVER, gpu_layers=-1),
                host=SPLIT_HOST,
            ),
            processes=None,
            busy_ratio=0.3,
        ),
        74.75 * 0.83,
        "model-too-big",
        "model-too-big",
        id="by size alone, where processes are hidden",
    ),
    pytest.param(
        replace(
            gpu_case(
                ms_per_token=33.0,
                completion=400,
                device=apple(),
                model=QWEN_7B,
                server=ollama(8192, loaded=5.4, on_gpu=2.7),
                host=SPLIT_HOST,
            ),
            gpu=(),
        ),
        13.167 * 0.475,
        "Ollama left 2.4 GiB",
        "Set num_gpu to 29",
        id="a Mac, by the engine's word",
    ),
]

MISSING = [
    pytest.param(
        memory_untold(),
        "GPU memory of the server",
        id="neither the engine nor the driver tells",
    ),
    pytest.param(
        with_device(
            gpu_case(server=replace(SERVER, gpu_layers=-1), gpu=card(3_400)), private_pids=True
        ),
        "GPU memory of the server",
        id="a container with process numbers of its own",
    ),
    pytest.param(
        with_model(
            gpu_case(server=replace(SERVER, gpu_layers=-1), gpu=card(3_400)), file_bytes=None
        ),
        "size of the model file",
        id="the model file cannot be read",
    ),
    pytest.param(
        with_envelope(firing(), expected_tps=None),
        "decode rate expected of this GPU",
        id="no expectation",
    ),
    pytest.param(
        with_envelope(firing(), read_bytes=None, kv_bytes=None),
        "bytes read per token",
        id="no bytes per token",
    ),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
    pytest.param(with_phases(firing(), decode_tps=None), "decode rate", id="no rate"),
]


test_quiet = quiet(partial_offload, QUIET)
test_fires = fires(partial_offload, "lost_s said remedy", FIRING, phase="decode", rel=0.03)
test_names_the_missing_fact = lacks(partial_offload, MISSING)


def test_what_cpu_and_gpu_do_moves_the_confidence() -> None:
    sure = found(partial_offload, firing())
    doubted = found(partial_offload, with_host(firing(), server_cpu_cores=0.2))
    by_memory = found(partial_offload, half_in_memory(cores=7.8))

    assert sure.confidence == pytest.approx(0.97)
    assert doubted.confidence < 0.6
    assert 0.8 < by_memory.confidence < sure.confidence


def test_the_loss_is_told_from_bytes_and_not_from_what_is_left_over() -> None:
    slower = gpu_case(
        ms_per_token=750.0,
        completion=400,
        server=replace(SERVER, gpu_layers=20),
        device=DEVICE,
        gpu=card(4_000),
        host=SPLIT_HOST,
    )
    finding = found(partial_offload, slower)

    assert finding.lost_s < 0.97 * 299.25  # it alone would not have made it ninety times slower


def test_a_command_line_alone_rules_nothing_out_while_the_cpu_computes() -> None:
    """-ngl 99 and the driver's list is not to be read (WSL): the GPU waits, eight threads work."""
    case = gpu_case(
        ms_per_token=75.0,
        completion=400,
        server=replace(SERVER, gpu_layers=99),
        gpu=card(4_000, busy_ratio=0.2, processes=None),
        host=SPLIT_HOST,
    )

    assert missing_fact(partial_offload, case) == "GPU memory of the server"
    assert partial_offload.detect(with_host(case, server_cpu_cores=0.9)) is None
