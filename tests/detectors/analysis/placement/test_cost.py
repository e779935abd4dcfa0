"""What a split costs: held against published rates, and bounded by what bytes can explain."""

from dataclasses import replace

import pytest

from fakes.cases import with_device, with_host
from fakes.gpu_cases import GIB, SERVER, gpu_case, with_readings
from fakes.memory_cases import SPLIT_HOST, card, model_too_big, partial_offload
from slowtok.detectors.analysis.placement.cost import (
    confidence,
    gpu_busy_ratio,
    is_fetched,
    longer_per_token_s,
    lost_s,
)
from slowtok.detectors.analysis.placement.where import placement
from slowtok.detectors.case.case import Baseline, Case

VLLM = replace(SERVER, kind="vllm", gpu_layers=None, cpu_offload_bytes=4 * GIB)


def test_the_published_rate_of_a_split_lies_in_the_range() -> None:
    case = model_too_big()  # ollama#3301: 15 tokens/s
    whole_s = 1 / (case.envelope.expected_tps or 0)

    least_s, most_s = longer_per_token_s(case, placement(case))

    assert least_s < 1 / 15 - whole_s < most_s


@pytest.mark.parametrize(
    ("ms_per_token", "lost_ratio"),
    [
        (75.0, 0.895),  # in the range: all beyond the whole GPU's 7.9 ms
        (20.0, 0.857),  # quicker than RAM can be read: no less than that
        (750.0, 0.144),  # slower than RAM explains: no more than that of each token
    ],
)
def test_the_loss_is_what_bytes_can_explain(ms_per_token: float, lost_ratio: float) -> None:
    case = gpu_case(
        ms_per_token=ms_per_token,
        completion=400,
        server=replace(SERVER, gpu_layers=20),
        gpu=card(4_000),
        host=SPLIT_HOST,
    )

    assert lost_s(case, placement(case)) == pytest.approx(
        lost_ratio * (case.phases.decode_s or 0), rel=0.02
    )


@pytest.mark.parametrize(
    ("usual_tps", "lost_ratio"),
    [
        (None, 0.72),  # all that RAM explains of 150 ms
        (1000 / 75, 0.45),  # 75 ms are usual since it was loaded: the rest began now
        (1000 / 8, 0.0),  # with the very same split it was as quick as on the GPU
    ],
)
def test_a_split_that_stands_explains_what_is_usual(
    usual_tps: float | None, lost_ratio: float
) -> None:
    case = gpu_case(
        ms_per_token=150.0,
        completion=400,
        server=replace(SERVER, gpu_layers=20),
        gpu=card(4_000),
        host=SPLIT_HOST,
    )
    case = replace(case, baseline=Baseline(usual_decode_tps=usual_tps))

    assert lost_s(case, placement(case)) == pytest.approx(
        lost_ratio * (case.phases.decode_s or 0), abs=0.8
    )


def test_ram_that_was_not_measured_widens_the_range() -> None:
    case = partial_offload()
    unmeasured = with_device(case, ram_bandwidth_bytes_per_s=None)

    least_s, most_s = longer_per_token_s(case, placement(case))
    unsure_least_s, unsure_most_s = longer_per_token_s(unmeasured, placement(unmeasured))

    assert unsure_least_s < least_s < most_s < unsure_most_s


def test_vllm_fetches_over_the_link() -> None:
    case = gpu_case(server=VLLM, gpu=card(22_000, busy_ratio=0.97))
    least_s, most_s = longer_per_token_s(case, placement(case))

    assert least_s < 4 * GIB / 25.8e9 < most_s


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(partial_offload(), 0.97, id="told, the CPU busy, the GPU waiting"),
        pytest.param(with_host(partial_offload(), server_cpu_cores=None), 0.95, id="CPU not seen"),
        pytest.param(
            with_readings(partial_offload(), busy_ratio=0.97), 0.57, id="the GPU never waits"
        ),
        pytest.param(
            with_host(with_readings(partial_offload(), busy_ratio=0.97), server_cpu_cores=0.1),
            0.32,
            id="nor does the CPU work",
        ),
        pytest.param(gpu_case(server=VLLM, gpu=card(22_000, busy_ratio=0.97)), 0.9, id="vLLM"),
    ],
)
def test_confidence(case: Case, expected: float) -> None:
    assert confidence(case, placement(case)) == pytest.approx(expected, abs=0.01)


def test_gpus_that_take_turns_are_busy_together() -> None:
    case = gpu_case()
    halves = tuple(replace(s, index=i, busy_ratio=0.49) for s in case.gpu for i in (0, 1))
    case = replace(case, server=replace(SERVER, gpu_indices=(0, 1)), gpu=halves)

    assert gpu_busy_ratio(case) == pytest.approx(0.98)
    assert gpu_busy_ratio(
        replace(case, server=replace(case.server, split_mode="row"))
    ) == pytest.approx(0.49)


def test_too_much_for_the_gpu_beside_a_resting_cpu_is_fetched_by_the_gpu() -> None:
    case = gpu_case()
    too_much = replace(placement(case), source="size", weights_ratio=0.3)

    assert is_fetched(case, too_much)
    assert not is_fetched(replace(case, host=partial_offload().host), too_much)
    assert not is_fetched(case, placement(case))
