"""Why a part is not on the GPU: one reason, the first in the order in which a cure helps."""

from dataclasses import replace

import pytest

from fakes import memory_cases
from fakes.firing import FIRING
from fakes.gpu_cases import GIB, LLAMA_8B, SERVER, gpu_case
from fakes.memory_cases import SPLIT_HOST, card, ollama
from slowtok.detectors.analysis.placement.reasons import (
    better_load_bytes,
    decides_itself,
    needed_bytes,
    others_at_load_bytes,
    reason_for,
)
from slowtok.detectors.analysis.placement.where import placement
from slowtok.detectors.case.case import Case, History, ModelLoad
from slowtok.detectors.case.engine import ModelFacts
from slowtok.detectors.case.machine import GpuProcess
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of
from slowtok.detectors.expectation.footprint import LEAST_OVERHEAD_BYTES, footprint

ROOTS = ("model-too-big", "context-oversized", "vram-held-by-others", "reload-degradation")


@pytest.mark.parametrize("cause", [*ROOTS, "partial-offload"])
def test_exactly_one_root_fires_beside_the_split(cause: str) -> None:
    case = FIRING[cause]()
    found = {cause_of(d) for d in CATALOG if cause_of(d) in ROOTS and d.detect(case) is not None}

    assert found == {cause} - {"partial-offload"}


def sized(gib: float, *, context: int = 1024, margin: bool = True) -> Case:
    """A model with weights of this size on a card with 23.7 GiB, a tenth of it in RAM."""
    model = replace(LLAMA_8B, file_bytes=int(gib * GIB), read_bytes=int(gib * GIB))
    layers = -1 if margin else 30
    return gpu_case(
        ms_per_token=150.0,
        completion=300,
        model=model,
        server=replace(SERVER, gpu_layers=layers, context_tokens=context),
        gpu=card(int(gib * 0.85 * 1024)),
        host=SPLIT_HOST,
    )


@pytest.mark.parametrize(
    ("case", "root", "sure"),
    [
        pytest.param(sized(24.0), "model-too-big", True, id="more than all"),
        pytest.param(sized(22.5), "model-too-big", False, id="the engine's margin decides"),
        pytest.param(sized(20.0), "told", True, id="fits with the margin"),
        pytest.param(sized(20.0, context=65_536), "context-oversized", True, id="8 GiB of KV"),
        pytest.param(
            sized(20.5, context=16_384),
            "context-oversized",
            False,
            id="the margin, at that context",
        ),
        pytest.param(sized(20.5, context=4096, margin=False), "told", True, id="told, no margin"),
    ],
)
def test_root(case: Case, root: str, *, sure: bool) -> None:
    reason = reason_for(case, placement(case))

    assert (reason.root, reason.sure) == (root, sure)


def test_what_is_needed_is_measured_where_engine_and_driver_tell() -> None:
    """ollama#5821 (3.1 8B, 80,000 tokens): 23.5 GiB by its estimate, 17.3 held, 2 of 33 missing."""
    case = gpu_case(
        server=replace(ollama(80_000), gpu_layers=31), gpu=card(17_700), host=SPLIT_HOST
    )

    assert needed_bytes(case, placement(case)) / GIB == pytest.approx(18.1, abs=0.2)
    assert reason_for(case, placement(case)).root == "told"


def test_less_context_needs_less() -> None:
    case = memory_cases.context_oversized()
    placed = placement(case)

    saved = needed_bytes(case, placed) - needed_bytes(case, placed, 8192)
    assert saved == pytest.approx((65_536 - 8192) * 57_344)
    assert needed_bytes(case, placed, 100_000) == needed_bytes(case, placed)


def test_a_kv_cache_of_unknown_size_is_not_guessed() -> None:
    model = ModelFacts(file_bytes=20 * GIB, read_bytes=20 * GIB, layers=32)
    case = gpu_case(
        model=model, server=replace(SERVER, gpu_layers=-1), gpu=card(18_000), host=SPLIT_HOST
    )
    placed = placement(case)

    assert needed_bytes(case, placed) == needed_bytes(case, placed, 100) == 20.6 * GIB // 1


def test_what_others_held_at_load_wins_over_what_they_hold_now() -> None:
    case = memory_cases.vram_held_by_others()
    placed = placement(case)
    load = case.history.loads[0]
    told = replace(case, history=History(loads=(replace(load, others_bytes=3 * GIB),)))
    unseen = replace(case, history=History())

    assert others_at_load_bytes(told, placed, 23 * GIB) == (3 * GIB, True)
    assert others_at_load_bytes(case, placed, 23 * GIB)[0] / GIB == pytest.approx(5.2)
    assert others_at_load_bytes(unseen, placed, 23 * GIB) == (900 * 2**20, False)


@pytest.mark.parametrize(
    ("now_gib", "before_gib", "better"),
    [(4.8, 6.4, True), (6.3, 6.4, False), (6.4, 4.8, False), (None, 6.4, False), (0, 6.4, True)],
)
def test_a_better_load(now_gib: float | None, before_gib: float, *, better: bool) -> None:
    now = ModelLoad(age_s=1.0, server_gpu_bytes=None if now_gib is None else int(now_gib * GIB))
    before = replace(now, age_s=9.0, server_gpu_bytes=int(before_gib * GIB))
    case = replace(gpu_case(), history=History(loads=(now, before)))

    assert (better_load_bytes(case) is not None) is better


@pytest.mark.parametrize(
    ("kind", "layers", "itself"),
    [
        ("llama-server", 20, False),
        ("llama-server", -1, True),
        ("llama-server", None, True),
        ("ollama", 23, True),  # what it asks its child for is its own guess
    ],
)
def test_who_decides(kind: str, layers: int | None, *, itself: bool) -> None:
    assert decides_itself(replace(SERVER, kind=kind, gpu_layers=layers)) is itself


def experts_kept(layers: int, *, card_gib: int = 16) -> Case:
    """A mixture of experts of 17 GiB on a card with less, told to keep some experts in RAM."""
    model = ModelFacts(
        name="qwen3:30b-a3b",
        file_bytes=18_560_000_000,
        read_bytes=1_920_000_000,
        layers=48,
        experts=128,
        experts_used=8,
        kv_bytes_per_token=98_304.0,
    )
    return gpu_case(
        ms_per_token=60.0,
        completion=300,
        model=model,
        server=replace(SERVER, gpu_layers=99, cpu_moe_layers=layers),
        gpu=card(4_000, total=card_gib * GIB),
        host=SPLIT_HOST,
    )


@pytest.mark.parametrize(
    ("case", "root"),
    [
        pytest.param(experts_kept(44), "told", id="2 GiB too many do not explain 15 in RAM"),
        pytest.param(experts_kept(6), "model-too-big", id="2 GiB too many, and 2 in RAM"),
        pytest.param(experts_kept(44, card_gib=8), "model-too-big", id="10 of 15 do not fit"),
    ],
)
def test_a_root_explains_most_of_what_is_missing(case: Case, root: str) -> None:
    assert reason_for(case, placement(case)).root == root


@pytest.mark.parametrize(
    ("others_gib", "layers", "root"),
    [
        pytest.param(0, 99, "told", id="a third would have found room"),
        pytest.param(0, -1, "told", id="whoever decides"),
        pytest.param(6, 99, "model-too-big", id="what is left is too small for any of it"),
    ],
)
def test_where_nothing_is_on_a_gpu_with_room_its_size_is_not_why(
    others_gib: int, layers: int, root: str
) -> None:
    other = GpuProcess(pid=9, name="game", memory_bytes=others_gib * GIB)
    model = replace(LLAMA_8B, file_bytes=20 * GIB, read_bytes=20 * GIB)
    case = gpu_case(
        ms_per_token=300.0,
        completion=100,
        model=model,
        server=replace(SERVER, gpu_layers=layers, context_tokens=2048),
        gpu=card(0, other, total=8 * GIB),
        host=SPLIT_HOST,
    )

    assert reason_for(case, placement(case)).root == root


@pytest.mark.parametrize(("slots", "root"), [(None, "context-oversized"), (1, "model-too-big")])
def test_what_buffers_cannot_be_is_the_cache_of_slots_that_nobody_told(
    slots: int | None, root: str
) -> None:
    """20 GiB by engine and driver, of which 8 GiB of weights and 1 of cache are known."""
    case = gpu_case(
        ms_per_token=100.0,
        completion=300,
        model=replace(LLAMA_8B, file_bytes=8 * GIB, read_bytes=8 * GIB),
        server=replace(ollama(8192, loaded=20.0, on_gpu=14.0), slots=slots),
        gpu=card(14_600, total=16 * GIB),
        host=SPLIT_HOST,
    )

    assert reason_for(case, placement(case)).root == root


def test_each_gpu_of_a_split_has_its_own_context_and_buffers() -> None:
    one = footprint(LLAMA_8B, SERVER)
    two = footprint(LLAMA_8B, SERVER, gpus=2)

    assert one is not None
    assert two is not None
    assert two.least_bytes - one.least_bytes == LEAST_OVERHEAD_BYTES


@pytest.mark.parametrize(
    ("kind", "holder", "root"),
    [
        pytest.param("ollama", None, "reload-degradation", id="on nobody's name"),
        pytest.param("ollama", "ollama", "reload-degradation", id="Ollama's own runner of before"),
        pytest.param("ollama", "python3", "vram-held-by-others", id="another program"),
        pytest.param("llama-server", "ollama", "vram-held-by-others", id="another engine"),
    ],
)
def test_memory_that_only_the_engine_itself_can_hold_is_a_worse_load(
    kind: str, holder: str | None, root: str
) -> None:
    case = memory_cases.reload_degradation()
    stale = GpuProcess(pid=9, name=holder, memory_bytes=18 * GIB)
    now, before = case.history.loads
    full = card(5_200, *([stale] if holder else []), busy_ratio=0.2, free_bytes=200 * 2**20)
    if holder is None:
        full = replace(full, reserved_bytes=300 * 2**20)
    load = replace(now, others_bytes=18 * GIB)
    case = replace(
        case,
        server=replace(case.server, kind=kind, gpu_layers=-1),
        gpu=tuple(replace(full, at_s=s.at_s, index=s.index) for s in case.gpu),
        history=History(loads=(load, before)),
    )

    assert reason_for(case, placement(case)).root == root
