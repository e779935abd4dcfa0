"""The simulator obeys its physics, and shows them as instruments do; no detector has a say here."""

from dataclasses import replace
from random import Random

import pytest

from simulator.cards import CARDS
from simulator.geometry import MODELS
from simulator.run import run
from simulator.scenarios import FAULTS, build, draw, group_of, settle, split_of
from simulator.setups import cpu_world, gpu_world, need_gib, room_gib
from simulator.silicon import SW_THERMAL
from simulator.simulate import Scenario, Truth, decode_tps, healthy_tps, simulate
from simulator.world import Host, Level, World, change
from slowtok.detectors.case import Case


def a_world(**nature: float) -> World:
    world = gpu_world(
        Random(1),
        cards=(CARDS["NVIDIA GeForce RTX 3090"],),
        kinds=("llama-server",),
        models=(MODELS["Llama-3-8B"],),
    )
    world = replace(world, quantisation="Q4_K_M")
    world = change(world, "request", prompt=600, cached=0, completion=800, chunk_tokens=1.0)
    return change(world, "nature", **{"knee": 0.6, "jitter": 0.02, "spin": 1.0, **nature})


def case_of(world: World) -> Case:
    return simulate(Scenario(name="test", seed=3, world=world))


def median_busy(case: Case) -> float:
    ratios = sorted(s.busy_ratio for s in case.gpu_during("decode") if s.busy_ratio is not None)
    return ratios[len(ratios) // 2]


def test_a_resident_model_runs_near_what_was_published_for_it() -> None:
    rate = decode_tps(a_world(efficiency=0.86), run(a_world(efficiency=0.86)))

    assert 105 < rate < 140  # an RTX 3090 with Llama-3-8B Q4_K_M: 111 to 134 tokens/s in reports


def test_no_run_is_faster_than_the_memory() -> None:
    for name, number in draw(60):
        scenario, case = build(name, number)
        if scenario.world.work.drafted or case.phases.decode_tps is None:
            continue
        if case.envelope.ceiling_tps is not None and scenario.world.cards:
            assert case.phases.decode_tps < case.envelope.ceiling_tps


def test_layers_on_the_cpu_leave_the_gpu_idle_by_their_share_of_the_time() -> None:
    split = change(a_world(), "placement", gpu_ratio=0.6, kv_gpu_ratio=0.6)
    case = case_of(split)

    assert case.phases.decode_tps is not None
    assert case.phases.decode_tps < 0.4 * healthy_tps(split)
    assert median_busy(case) < 0.4
    assert max(s.server_cpu_cores or 0 for s in case.host_during("decode")) > 3


def test_bytes_that_spilled_come_over_the_link_while_the_gpu_seems_busy() -> None:
    case = case_of(change(a_world(), "placement", spill_gib=2.0))
    samples = case.gpu_during("decode")

    assert median_busy(case) > 0.95
    assert max(s.pcie_rx_bytes_per_s or 0 for s in samples) > 10e9
    assert all(s.power_w is not None and s.power_w < 220 for s in samples)


def test_a_power_limit_takes_clocks_first_and_rate_only_below_the_knee() -> None:
    world = a_world(decode_power=0.95)
    mild = change(world, "clocks", limit_ratio=Level(0.85, 1.0))
    severe = change(world, "clocks", limit_ratio=Level(0.4, 1.0))

    assert decode_tps(mild, run(mild)) > 0.95 * decode_tps(world, run(world))
    assert decode_tps(severe, run(severe)) < 0.75 * decode_tps(world, run(world))


def test_heat_throttles_and_its_counter_runs() -> None:
    hot = a_world(cooling=0.45, ambient_c=38.0, warm=1.0, decode_power=0.95, knee=0.85)
    case = case_of(change(hot, "request", completion=3000))
    counted = [s.throttled_sw_thermal_ns for s in case.gpu if s.throttled_sw_thermal_ns is not None]

    assert any((s.reasons or 0) & SW_THERMAL for s in case.gpu)
    assert counted[-1] - counted[0] > 1e9


def test_a_second_before_the_request_makes_the_first_readings_stale() -> None:
    case = case_of(a_world(jitter=0.02))
    begin = case.phases.decode_from_at_s or 0.0
    early = [s.power_w or 0 for s in case.gpu if s.at_s < begin + 0.2]
    late = [s.power_w or 0 for s in case.gpu if s.at_s > begin + 2]

    assert min(early) < 0.8 * (sum(late) / len(late))


def test_links_and_processes_are_read_once_a_second() -> None:
    case = case_of(a_world())
    seen = [s for s in case.gpu if s.processes is not None]

    assert len(seen) < len(case.gpu) / 5


@pytest.mark.parametrize(("name", "number"), [("vram-spill", 3), ("plain", 1), ("queued", 2)])
def test_a_scenario_is_the_same_each_time(name: str, number: int) -> None:
    assert build(name, number)[1] == build(name, number)[1]


def test_scenarios_are_split_in_two_halves_that_do_not_meet() -> None:
    drawn = list(draw(1000))
    tuning = [one for one in drawn if split_of(*one) == "tuning"]

    assert set(draw(50, "tuning")).isdisjoint(draw(50, "published"))
    assert 400 < len(tuning) < 600


def test_every_kind_of_run_is_drawn() -> None:
    names = {name for name, _ in draw(600)}

    assert set(FAULTS) <= names
    assert {group_of(name) for name in names} == {"fault", "healthy", "unexplained"}


def test_a_fault_that_costs_nothing_is_no_fault() -> None:
    world = a_world()
    truth = settle(Truth(slow=None, primary=frozenset({"power-cap"})), world, case_of(world))

    assert truth == Truth(slow=False, allowed=frozenset({"power-cap"}))


def test_slow_cores_hold_decode_back_only_where_too_few_are_left() -> None:
    """Five cores of the usual clock reach what the memory gives."""
    laptop = cpu_world(Random(2))
    laptop = replace(laptop, host=Host(physical=8, logical=16))
    laptop = change(laptop, "engine", threads=8)
    rates = [
        decode_tps(world, run(world))
        for clock in (1.0, 0.7, 0.25)
        for world in [change(laptop, "work", cpu_clock=clock)]
    ]

    assert rates[1] == pytest.approx(rates[0], rel=0.02)
    assert rates[2] == pytest.approx(rates[0] * 8 * 0.25 / 5, rel=0.05)


def test_experts_on_the_cpu_are_most_of_what_is_held_and_less_of_what_is_read() -> None:
    world = change(a_world(), "placement", gpu_ratio=0.25, held_ratio=0.07)
    held = max(p.memory_bytes or 0 for s in case_of(world).gpu for p in s.processes or ())

    assert held < 0.5 * world.model.file_bytes(world.quantisation)


def test_an_old_ollama_does_not_tell_what_was_cached() -> None:
    for version, cached in (("0.30.11", None), ("0.35.1", 300)):
        world = change(a_world(), "engine", kind="ollama", version=version)
        world = change(world, "request", cached=300)

        assert case_of(world).timeline.tokens.cached == cached


def test_a_fault_is_told_when_it_comes() -> None:
    world = change(a_world(), "health", xid=63, xid_at_s=2.0)
    samples = case_of(world).gpu
    told = [s.at_s - samples[0].at_s for s in samples if s.xids]

    assert min(told) == pytest.approx(2.0, abs=0.2)


def test_ordinary_setups_fit() -> None:
    for seed in range(40):
        world = gpu_world(Random(seed))

        assert need_gib(world) < room_gib(world)


def test_ollama_does_not_know_what_the_driver_moved() -> None:
    world = change(a_world(), "engine", kind="ollama", version="0.35.1")
    world = change(world, "placement", spill_gib=2.0)
    server = case_of(world).server

    assert server.loaded_bytes == server.loaded_gpu_bytes
