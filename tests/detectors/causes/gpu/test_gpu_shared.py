from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes.cases import with_envelope, with_phases, with_server, with_tokens
from fakes.cause_tests import fires, found, lacks, missing_fact, quiet
from fakes.engine_cases import with_gaps
from fakes.gpu_cases import (
    GIB,
    MIB,
    SERVING,
    gpu_case,
    sampled,
    with_card,
    with_readings,
)
from fakes.link_cases import GAME, healthy_layers, multi_gpu_split, shared, stepped
from fakes.link_cases import gpu_shared as firing
from slowtok.detectors.case.case import Case, Range
from slowtok.detectors.case.machine import GpuProcess
from slowtok.detectors.causes.gpu import gpu_shared

HALF = replace(SERVING, busy_ratio=0.49)
COMPOSITOR = GpuProcess(pid=900, name="Xwayland", memory_bytes=150 * MIB, busy_ratio=0.05)
HIDDEN = GpuProcess(pid=5000, memory_bytes=8 * GIB, is_server=None, busy_ratio=0.5)
MPS = GpuProcess(pid=60, name="nvidia-cuda-mps-server", memory_bytes=30 * MIB)

QUIET = [
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(with_server(firing(), gpu_layers=0), id="told to use no GPU"),
    pytest.param(shared(SERVING, COMPOSITOR), id="a desktop's drawing"),
    pytest.param(
        shared(SERVING, replace(GAME, busy_ratio=None)), id="the other one only holds memory"
    ),
    pytest.param(shared(HALF, GAME, busy_ratio=0.7), id="there was time left for both"),
    pytest.param(shared(HALF, replace(GAME, is_server=True)), id="another runner of the server"),
    pytest.param(shared(replace(SERVING, busy_ratio=None)), id="nobody else is on it"),
    pytest.param(with_card(firing(), partition_of="GPU-1"), id="a slice of its own (MIG)"),
    pytest.param(healthy_layers(), id="half busy each: layers on two GPUs"),
    pytest.param(multi_gpu_split(), id="tensor parallel, nobody else"),
    pytest.param(shared(HALF, GAME, ms_per_token=1.5), id="too short a look"),
]
FIRING = [
    pytest.param(firing(), 7.79, "game (pid 77), computed on GPU 0", id="half each"),
    pytest.param(
        shared(replace(SERVING, busy_ratio=0.97), replace(GAME, busy_ratio=0.97)),
        7.79,
        "had 50 % of its time",
        id="both say nearly all: they share it",
    ),
    pytest.param(
        shared(HALF, replace(GAME, name=None, busy_ratio=0.25), replace(GAME, pid=78)),
        # 49, 25 and 50 parts of 124 are scaled to the whole
        15.58 * 0.75 / 1.24,
        "pid 78",
        id="two others, the greater one named",
    ),
    pytest.param(
        shared(replace(SERVING, busy_ratio=0.8), replace(GAME, busy_ratio=0.15), ms_per_token=9.4),
        9.39 * 0.15,
        "had 15 % of its time",
        id="a little",
    ),
]
MISSING = [
    pytest.param(replace(firing(), gpu=()), "GPU samples during decode", id="no samples"),
    pytest.param(with_readings(firing(), processes=None), "GPU time of each process", id="WSL2"),
    pytest.param(shared(HALF, HIDDEN), "GPU time of each process", id="a container's own pids"),
    pytest.param(
        shared(replace(SERVING, busy_ratio=None), replace(GAME, busy_ratio=None)),
        "GPU time of each process",
        id="no utilisation of processes",
    ),
]


test_quiet = quiet(gpu_shared, QUIET)
test_fires = fires(gpu_shared, "lost_s said", FIRING, phase="decode")
test_names_the_missing_fact = lacks(gpu_shared, MISSING)


HALVED = stepped(gpu_case(ms_per_token=10.4), at=0.6, times=2.0)


def beside_others(others: Callable[[float], float], before: Case = HALVED) -> Case:
    """Others that are so busy at each moment; the rate halves after 60 % of the time."""
    return with_readings(
        before,
        processes=lambda s: (
            replace(SERVING, busy_ratio=0.97 - others(s)),
            replace(GAME, busy_ratio=others(s)),
        ),
    )


def in_waves(*, slow: float, quick: float, ms_per_token: float = 20.0) -> Case:
    """Two seconds at this rate, two at 100 tokens/s, and so on; what others have in each.

    The driver's share is that of the second before: half a second late.
    """
    slow_gaps_s = [ms_per_token / 1000] * round(2000 / ms_per_token)
    waves = with_gaps(gpu_case(), (slow_gaps_s + [0.01] * 200) * 4)
    end_s = waves.phases.decode_to_at_s or 0.0
    waves = replace(waves, gpu=sampled(waves.gpu[0], waves.gpu[0].at_s, end_s))
    return beside_others(lambda s: slow if (s - 0.7) % 4 < 2 else quick, waves)


test_confidence_follows_the_evidence = fires(
    gpu_shared,
    "confidence",
    [
        pytest.param(firing(), 0.75, id="steady: two readings agree"),
        pytest.param(
            beside_others(lambda s: 0.49 if s > 6.4 else 0.0), 0.95, id="the rate goes with it"
        ),
        pytest.param(
            beside_others(lambda s: 0.49 if s < 5.0 else 0.0), 0.45, id="the rate goes against it"
        ),
        pytest.param(shared(HALF, GAME, MPS), 0.45, id="MPS: side by side, no turns"),
        pytest.param(
            in_waves(slow=0.5, quick=0.1), 0.95, id="now and then, and the rate goes with it"
        ),
        pytest.param(
            in_waves(slow=0.1, quick=0.5), 0.45, id="now and then, and the rate goes against it"
        ),
        pytest.param(
            in_waves(slow=0.5, quick=0.1, ms_per_token=10.0),
            0.45,
            id="now and then, and the rate stays",
        ),
        pytest.param(in_waves(slow=0.3, quick=0.3), 0.75, id="others are as busy all the time"),
    ],
)


def test_layers_on_two_gpus_lose_only_on_the_one_that_is_shared() -> None:
    alone = found(gpu_shared, firing())
    server = replace(firing().server, gpu_indices=(0, 1), split_mode="layer")
    second = tuple(replace(s, index=1, processes=(SERVING,)) for s in firing().gpu)
    both = replace(firing(), server=server, gpu=(*firing().gpu, *second))
    finding = found(gpu_shared, both)

    assert finding.lost_s == pytest.approx(alone.lost_s / 2)


def test_where_layers_take_turns_what_nobody_computed_is_what_was_lost() -> None:
    """A card works for the server for a fifth of the time, each of two; a game has the second."""
    slower = gpu_case(ms_per_token=25.0)  # 10 ms are expected
    server = replace(slower.server, gpu_indices=(0, 1), split_mode="layer")
    mine = replace(SERVING, busy_ratio=0.2)
    first = tuple(replace(s, processes=(mine,), busy_ratio=0.2) for s in slower.gpu)
    game = replace(GAME, busy_ratio=0.75)
    second = tuple(replace(s, index=1, processes=(mine, game), busy_ratio=0.96) for s in slower.gpu)

    finding = found(gpu_shared, replace(slower, server=server, gpu=(*first, *second)))

    assert finding.lost_s == pytest.approx(0.6 * (slower.phases.decode_s or 0.0), rel=0.1)


def long_prompt(rate_tps: float) -> Case:
    """A prompt that takes 10 s beside a game; 1,000 tokens/s are expected.

    The answer is too short for the shares, which are told once a second.
    """
    case = firing()
    took_s, begin_s = 10.0, case.phases.prefill_from_at_s or 0.0
    case = with_tokens(case, prompt=round(rate_tps * took_s), cached=0)
    case = with_phases(
        case,
        prefill_s=took_s,
        prefill_tps=rate_tps,
        decode_s=2.5,
        decode_from_at_s=begin_s + took_s,
        decode_to_at_s=begin_s + took_s + 2.5,
        source="engine",
    )
    case = with_envelope(case, prefill=Range(low=700.0, high=1400.0), expected_prefill_tps=1000.0)
    samples = sampled(case.gpu[0], begin_s, begin_s + took_s)
    untold = sampled(replace(case.gpu[0], processes=None), begin_s + took_s, begin_s + took_s + 2.5)
    return replace(case, gpu=(*samples, *untold))


def test_a_slow_prefill_waits_for_others_too() -> None:
    finding = found(gpu_shared, long_prompt(500.0))

    assert finding.phase == "prefill"
    assert finding.lost_s == pytest.approx(5.0, rel=0.1)


def test_a_prefill_that_is_not_slow_lost_nothing() -> None:
    assert missing_fact(gpu_shared, long_prompt(900.0)) == "GPU time of each process"
