"""The simulator obeys its physics, and shows them as instruments do; no detector has a say here."""

import ast
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

import simulator
from simulator.cards import CARDS
from simulator.contract import made
from simulator.cost import costs, steady_token_s, without_fault
from simulator.geometry import MODELS
from simulator.healthy import HEALTHY
from simulator.run import run
from simulator.scenarios import FAULTS, build, draw, group_of, settle, split_of
from simulator.setups import cpu_world, gpu_world, need_gib, room_gib, sized
from simulator.sight import CHANCES, seen
from simulator.silicon import SW_THERMAL
from simulator.simulate import Scenario, Truth, decode_tps, healthy_tps, simulate
from simulator.world import FOREVER, Host, Level, World, change
from slowtok.detectors.case.case import Case


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
        on_gpu = scenario.world.cards and scenario.world.placement.gpu_ratio == 1
        if case.envelope.ceiling_tps is not None and on_gpu:
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


def test_a_fault_that_costs_nothing_is_no_fault_and_may_not_be_named() -> None:
    truth = settle(Truth(slow=None, primary=frozenset({"power-cap"})), a_world())

    assert truth == Truth(slow=False)


@pytest.mark.parametrize(("share", "slow"), [(0.0, False), (0.04, False), (0.1, None), (0.2, True)])
def test_whether_a_run_is_slow_is_what_its_fault_cost(share: float, slow: bool | None) -> None:
    world = change(a_world(), "others", gpu_share=Level(share, 0.0))
    world = change(world, "request", completion=2000)

    assert settle(Truth(slow=None, primary=frozenset({"gpu-shared"})), world).slow is slow


def test_a_loss_that_nobody_feels_is_not_slow() -> None:
    world = change(a_world(), "others", gpu_share=Level(0.5, 0.0))
    short = change(world, "request", completion=60)
    truth = Truth(slow=None, primary=frozenset({"gpu-shared"}))

    assert settle(truth, world).slow is True
    assert settle(truth, short).slow is None


def test_without_its_fault_a_machine_keeps_what_no_specification_tells() -> None:
    world = change(a_world(efficiency=0.7), "placement", gpu_ratio=0.5, kv_gpu_ratio=0.5)
    twin = without_fault(world)

    assert (twin.nature.efficiency, twin.request, twin.cards) == (0.7, world.request, world.cards)
    assert costs(world)["decode"].ratio > 1
    assert costs(twin)["decode"].ratio == pytest.approx(0, abs=1e-6)


def test_cards_that_talk_too_much_are_held_against_the_same_cards_in_turns() -> None:
    world = gpu_world(
        Random(3), cards=(CARDS["NVIDIA GeForce RTX 3090"],), kinds=("vllm",), count=2
    )
    slow, fast = (change(world, "nature", sync_s=s) for s in (500e-6, 0.0))

    assert without_fault(slow).engine.tensor_parallel == 1
    assert without_fault(fast).engine.tensor_parallel == 2


def test_what_an_earlier_prompt_held_would_have_come_from_the_cache() -> None:
    world = change(a_world(), "request", prompt=8000, cached=0, common=0.1, shared=0.9)

    assert costs(world)["prefill"].ratio > 5


def test_faults_are_of_all_sizes() -> None:
    world, dice = a_world(), Random(5)
    well_s = steady_token_s(world)
    sizes = [
        steady_token_s(sized(dice, lambda x: change(world, "work", kernel=1 + 19 * x))) / well_s
        for _ in range(200)
    ]

    assert min(sizes) == pytest.approx(1.1, abs=0.1)
    assert max(sizes) == pytest.approx(10, abs=1)
    assert sum(size < 3.3 for size in sizes) == pytest.approx(100, abs=25)


def test_healthy_runs_lose_next_to_nothing() -> None:
    slow = [name for name in HEALTHY for i in range(6) if build(name, i)[0].truth.slow is not False]

    assert len(slow) <= 0.03 * 6 * len(HEALTHY), slow


def test_the_truth_knows_nothing_of_bands_and_detectors() -> None:
    """What is taken from the product are the types of a case, and what makes a case whole."""
    folder = Path(simulator.__file__).parent
    types = {"case", "engine", "machine"}
    taken = {
        (path.name, node.module or "")
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slowtok")
    }
    others = {one for one in taken if one[1].rpartition(".")[2] not in types}

    assert others == {
        ("simulate.py", "slowtok.detectors.expectation.envelope"),
        ("simulate.py", "slowtok.proxy.stream.phases"),
    }


def test_each_kind_of_blindness_is_drawn_as_often_as_it_says() -> None:
    dice, world = Random(9), a_world()
    drawn = Counter(name for _ in range(4000) for name in seen(world, dice)[1])

    assert {name: count / 4000 for name, count in drawn.items()} == pytest.approx(
        dict(CHANCES), abs=0.02
    )


def test_the_engine_of_another_user_is_not_told_from_others_on_the_gpu() -> None:
    world = change(a_world(), "others", gpu_gib=1.0)
    case = case_of(change(world, "sight", server_from_s=FOREVER))
    processes = [p for s in case.gpu for p in s.processes or ()]

    assert {p.is_server for p in processes if p.pid != 900} == {None}
    assert case.server.gpu_indices is None
    assert all(s.server_cpu_cores is None for s in case.host)


def test_a_late_child_is_seen_from_then_on() -> None:
    case = case_of(change(a_world(), "sight", server_from_s=2.0))
    known = [s.server_cpu_cores is not None for s in case.host]

    assert known == sorted(known)
    assert {False, True} == set(known)


def test_neighbours_that_do_not_come_through_the_proxy_are_in_the_gauges_alone() -> None:
    world = change(a_world(), "others", neighbours=Level(3.0, 0.0), via_proxy=False)
    case = case_of(change(world, "engine", metrics=True))

    assert case.neighbours.in_flight_at_send == 0
    assert case.activity is not None
    assert case.activity.running_max == 4


def test_what_was_always_so_is_the_past_of_what_is_standing() -> None:
    world = change(a_world(), "work", kernel=3.0)
    well = case_of(change(world, "past", before="well", count=6))
    same = case_of(change(world, "past", before="same", count=6))

    assert well.baseline.decode_tps == pytest.approx(healthy_tps(world), rel=0.1)
    assert (same.baseline.count, same.history.best_decode_tps) == (0, None)


def test_a_field_that_another_version_does_not_have_is_left_out() -> None:
    @dataclass
    class Old:
        known: int = 0

    assert made(Old, known=1, unknown=2) == Old(known=1)


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
