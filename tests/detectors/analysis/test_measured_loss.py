"""What is lost for certain, whatever is expected; each rule has a healthy twin."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from fakes.clock_cases import counting
from fakes.gpu_cases import gpu_case, with_readings
from slowtok.detectors.analysis.measured_loss import measured_loss, was_throttled
from slowtok.detectors.analysis.phase_loss import judge_decode
from slowtok.detectors.case.case import Baseline, Case, Envelope, Neighbours, Range
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.diagnosis.diagnose import diagnose

NO_BAND = Envelope(because=("the card is in no table",))


def streaming(gaps_s: Iterable[float], *, tokens: int | None = None) -> Case:
    """A stream of an engine on this machine whose reads came with these gaps; nothing expected."""
    whole = gpu_case()
    begin_s = whole.phases.decode_from_at_s or 0.0
    times = [begin_s]
    for gap_s in gaps_s:
        times.append(times[-1] + gap_s)
    took_s, completion = times[-1] - begin_s, tokens or len(times)
    timeline = replace(
        whole.timeline,
        token_at_s=tuple(times),
        tokens=replace(whole.timeline.tokens, prompt=300, completion=completion),
    )
    phases = replace(
        whole.phases,
        decode_s=took_s,
        decode_stream_s=took_s,
        decode_tps=(completion - 1) / took_s,
        decode_to_at_s=times[-1],
        total_s=took_s + 0.2,
    )
    return replace(whole, timeline=timeline, phases=phases, envelope=NO_BAND)


def even(gap_s: float, count: int, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    return [gap_s * source.uniform(0.8, 1.2) for _ in range(count)]


def test_a_stall_that_nothing_makes_up_for_is_a_loss_without_a_band() -> None:
    case = streaming([*even(0.02, 200), 3.0, *even(0.02, 200)])
    lost = measured_loss(case)

    assert lost is not None
    assert lost.kind == "stood still"
    assert lost.lost_s == pytest.approx(3.0, abs=0.1)
    assert lost.reference_tps == pytest.approx(50, rel=0.05)
    judged = judge_decode(case)
    assert judged.slow
    assert judged.least_lost_s == pytest.approx(lost.lost_s)


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param(streaming(even(0.02, 400)), id="a steady stream"),
        pytest.param(streaming(even(1.0, 40)), id="slow, but even"),
        pytest.param(
            streaming([*even(0.02, 200), 0.8, *even(0.001, 40), *even(0.02, 160)]),
            id="a gap that a burst makes up for",
        ),
        pytest.param(
            streaming([*even(0.02, 100), 3.0, *even(0.02, 100)], tokens=351),
            id="a gap whose tokens came in one read",
        ),
        pytest.param(
            streaming([*even(0.02, 2000), 0.6, *even(0.02, 2000)]), id="less than a tenth"
        ),
        pytest.param(
            streaming([*even(0.16, 40), 0.9, *even(0.16, 40), 0.9]), id="gaps in proportion"
        ),
        pytest.param(
            streaming([*even(0.1, 60), 2.0, *even(0.1, 60)], tokens=700),
            id="reads with many tokens each: drafts, or a parser that holds back",
        ),
    ],
)
def test_nothing_was_lost_for_certain(quiet: Case) -> None:
    assert measured_loss(quiet) is None
    assert judge_decode(quiet).slow is None


STALLED = streaming([*even(0.02, 200), 3.0, *even(0.02, 200)])


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param(
            replace(STALLED, server=replace(STALLED.server, local=False)), id="a remote engine"
        ),
        pytest.param(
            replace(STALLED, timeline=replace(STALLED.timeline, loop_lag_s=3.0)), id="slowtok"
        ),
        pytest.param(
            replace(STALLED, timeline=replace(STALLED.timeline, client_blocked_s=2.5)),
            id="the client",
        ),
        pytest.param(
            replace(
                STALLED,
                phases=replace(STALLED.phases, decode_s=8.0, decode_stream_s=11.0),
            ),
            id="the way: the engine's own clock knows nothing of it",
        ),
    ],
)
def test_what_held_the_tokens_up_elsewhere_is_no_stall_of_the_engine(elsewhere: Case) -> None:
    assert measured_loss(elsewhere) is None


def test_a_rate_far_below_its_own_best_is_a_loss() -> None:
    lost = measured_loss(streaming([*even(0.02, 100), *even(0.06, 200)]))

    assert lost is not None
    assert lost.kind == "slower than itself"
    assert lost.reference_tps == pytest.approx(52, rel=0.1)


def test_alternating_rates_are_one_too() -> None:
    assert measured_loss(streaming([*even(0.02, 60), *even(0.08, 60)] * 3)) is not None


SLOWED = streaming([*even(0.02, 100), *even(0.06, 200)])


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param(streaming([*even(0.02, 100), *even(0.025, 300)]), id="hardly slower"),
        pytest.param(streaming([*even(0.02, 20), *even(0.06, 5), *even(0.02, 300)]), id="a hiccup"),
        pytest.param(
            replace(SLOWED, neighbours=Neighbours(decode_mean=0.5, decode_max=1)),
            id="a neighbour came",
        ),
        pytest.param(
            replace(SLOWED, activity=EngineActivity(span_s=5.0, running_max=3)),
            id="a neighbour that only the engine sees",
        ),
        pytest.param(
            replace(SLOWED, server=replace(SLOWED.server, speculative=True)),
            id="drafts: other text gives other rates",
        ),
        pytest.param(
            streaming([*even(0.02, 60), *([0.4, *([0.0001] * 20)] * 12)]), id="bursts on the way"
        ),
        pytest.param(streaming([*even(0.02, 8), *even(0.06, 25)]), id="fast for a moment"),
    ],
)
def test_is_not_slower_than_itself(quiet: Case) -> None:
    assert measured_loss(quiet) is None


def test_a_context_that_grows_makes_tokens_dearer_and_is_no_loss() -> None:
    """The KV cache is read more slowly than weights by some kernels: a slope, not a fault."""
    known = Envelope(read_bytes=1e9, kv_bytes=1e9, context_tokens=3300)
    gaps = [0.01 * (1 + 1.6 * i / 6000) for i in range(6000)]
    assert measured_loss(replace(streaming(gaps), envelope=known)) is None
    assert measured_loss(streaming(gaps)) is None  # what context costs is not known


def hot(ratio: float, *, sm_mhz: int = 630, tps: float = 60.0, reasons: int = 0x20) -> Case:
    """Heat counted for this share of the time, at this clock of 1,995 MHz."""
    case = with_readings(
        gpu_case(),
        sm_clock_mhz=sm_mhz,
        reasons=reasons,
        throttled_sw_thermal_ns=counting(ratio),
    )
    envelope = Envelope(decode=Range(low=30.0, high=150.0), expected_tps=110.0, ceiling_tps=190.0)
    return replace(
        case,
        envelope=envelope,
        phases=replace(case.phases, decode_tps=tps),
        timeline=replace(case.timeline, token_at_s=()),
    )


def test_counted_heat_at_low_clocks_is_a_loss_inside_a_wide_band() -> None:
    lost = measured_loss(hot(0.85))

    assert lost is not None
    assert lost.kind == "counted"
    assert diagnose(hot(0.85)).verdict == "slow"
    assert next(iter(diagnose(hot(0.85)).findings)) == "thermal-throttle"


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param(hot(0.20), id="for less than a quarter of the time"),
        pytest.param(hot(0.85, sm_mhz=1700), id="clocks that cost next to nothing"),
        pytest.param(hot(0.85, tps=100.0), id="nearly as fast as expected"),
        pytest.param(hot(0.0), id="the bit without its counter"),
        pytest.param(
            replace(hot(0.85), baseline=Baseline(count=5, decode_tps=62.0, decode_p10_tps=60.0)),
            id="as fast as when it was healthy",
        ),
    ],
)
def test_what_is_counted_and_costs_nothing_makes_nothing_slow(quiet: Case) -> None:
    assert measured_loss(quiet) is None
    assert diagnose(quiet).verdict == "normal"


def test_heat_without_cost_is_told_as_present_and_not_as_ruled_out() -> None:
    diagnosis = diagnose(hot(0.85, tps=100.0))

    assert "thermal-throttle" in diagnosis.unused
    assert "thermal-throttle" not in diagnosis.cleared
    assert was_throttled(hot(0.85, tps=100.0))
    assert not was_throttled(gpu_case())  # the software power cap is no sign of ill health


def test_drafts_that_come_one_by_one_make_no_stall_of_each_step() -> None:
    """The median of such gaps is that between tokens of one step, and says nothing."""
    assert measured_loss(streaming([*([0.6, 0.0005, 0.0005] * 40)])) is None
    assert measured_loss(streaming([0.3, 0.0005, 0.0005, 0.0005] * 30 + [0.3] * 60)) is None


def test_a_stall_among_reads_of_several_tokens_of_a_step_is_seen_all_the_same() -> None:
    gaps = [0.02, 0.0005] * 100
    lost = measured_loss(streaming([*gaps, 4.0, *gaps]))

    assert lost is not None
    assert lost.lost_s == pytest.approx(4.0, abs=0.1)


def test_a_hidden_thought_is_no_faster_stretch() -> None:
    """The engine decodes 120 hidden tokens and then 300 that are seen, all at 50 a second."""
    shown = streaming(even(0.02, 299), tokens=420)
    took_s = 420 * 0.02
    phases = replace(shown.phases, decode_s=took_s, decode_tps=419 / took_s, total_s=took_s + 0.2)
    assert measured_loss(replace(shown, phases=phases)) is None


def test_short_tool_calls_that_come_as_a_whole_are_no_slower_stretch() -> None:
    gaps = [gap for i in range(10) for gap in (*even(0.02, 30, i), 14 * 0.02)]
    assert measured_loss(streaming(gaps, tokens=1 + 300 + 140)) is None


def several(answers: int, gaps_s: Iterable[float], tokens: int) -> Case:
    """A stream of several answers at once: the rate is that of one of them."""
    case = streaming(gaps_s, tokens=tokens)
    took_s = case.phases.decode_s or 0.0
    rate = (tokens - answers) / answers / took_s
    return replace(case, phases=replace(case.phases, decode_tps=rate))


def test_of_several_answers_one_that_ends_sooner_slows_nothing_down() -> None:
    one_by_one = several(2, [*even(0.01, 200), *even(0.02, 300)], tokens=501)
    assert measured_loss(one_by_one) is None

    band = Envelope(decode=Range(low=40.0, high=60.0), expected_tps=50.0)
    judged = judge_decode(replace(one_by_one, envelope=band))
    assert judged.slow is None
    assert "several answers" in judged.reason


def test_several_answers_that_are_slow_however_long_each_was_are_slow() -> None:
    band = Envelope(decode=Range(low=400.0, high=600.0), expected_tps=500.0)
    case = several(2, even(0.01, 500), tokens=501)
    assert judge_decode(replace(case, envelope=band)).slow


def test_a_client_that_reads_slowly_makes_the_engine_no_slower_than_itself() -> None:
    slow = replace(SLOWED, timeline=replace(SLOWED.timeline, client_blocked_s=6.0))
    assert measured_loss(SLOWED) is not None
    assert measured_loss(slow) is None


def test_as_fast_as_when_it_was_healthy_is_not_slower_than_itself() -> None:
    usual = SLOWED.phases.decode_tps
    assert measured_loss(replace(SLOWED, baseline=Baseline(count=1, decode_tps=usual))) is None


def test_what_is_not_felt_beside_the_whole_request_makes_nothing_slow() -> None:
    stalled = streaming([*even(0.02, 30), 0.7, *even(0.02, 30)])
    assert judge_decode(stalled).slow
    late = replace(stalled, phases=replace(stalled.phases, total_s=40.0))  # a long prompt
    assert not judge_decode(late).slow

    warmed_up = streaming([*even(0.02, 30), *even(0.04, 20)])
    assert not judge_decode(warmed_up).slow


def test_a_tool_call_that_came_as_a_whole_before_the_client_left_is_no_stall() -> None:
    """Without a count nobody knows how many tokens the last read held."""

    def uncounted(case: Case) -> Case:
        timeline = replace(case.timeline, ended="client-gone")
        timeline = replace(timeline, tokens=replace(timeline.tokens, completion=None))
        return replace(case, timeline=timeline, phases=replace(case.phases, decode_tps=None))

    assert measured_loss(uncounted(streaming([*even(0.02, 200), 3.0]))) is None
    assert measured_loss(uncounted(STALLED)) is not None


def test_a_small_model_on_a_cpu_slows_down_as_its_context_grows() -> None:
    gaps = [0.01 * (1 + i / 3000) for i in range(3000)]
    case = streaming(gaps)
    on_cpu = replace(case, device=replace(case.device, gpus=()), gpu=())
    small = replace(on_cpu.model, read_bytes=10**9, kv_bytes_per_token=32_768.0)
    assert measured_loss(replace(on_cpu, model=small)) is None
    unknown = replace(on_cpu.model, read_bytes=None, kv_bytes_per_token=None)
    assert measured_loss(replace(on_cpu, model=unknown)) is None


def test_no_more_of_a_stall_is_lost_than_the_engine_says_it_decoded() -> None:
    stalled = streaming([*even(0.02, 25), 4.5, *even(0.02, 25)])
    lost = measured_loss(replace(stalled, phases=replace(stalled.phases, decode_s=3.5)))

    assert lost is not None
    assert lost.lost_s == pytest.approx(2.5, abs=0.1)
