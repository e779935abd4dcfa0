"""What is told about a simulated run: by the engine, the driver and earlier requests.

Each engine tells what it tells in life: llama-server its flags but no layers, Ollama sizes (which
are wrong where the driver spills), vLLM its metrics.
"""

from dataclasses import replace
from random import Random
from typing import Any

import slowtok.detectors.case.case as contract_of_cases
from simulator.cards import GIB
from simulator.contract import has, made
from simulator.physics import prefill_s
from simulator.readings import SERVER_PID, buffer_bytes, server_bytes
from simulator.run import Trace
from simulator.world import FOREVER, Engineering, Health, Others, Placement, Request, World
from slowtok.detectors.case.case import (
    Abandoned,
    Baseline,
    Case,
    History,
    ModelLoad,
    Neighbours,
    PromptPrefix,
)
from slowtok.detectors.case.engine import EngineActivity, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts

PORTS = {"llama-server": 8080, "ollama": 11434, "vllm": 8000, "sglang": 30000}
CHARS_PER_TOKEN = 4
LOOK_S = 0.5
MEASURED = 0.82
"""Of what RAM is sold as, a stream test reaches four fifths (STREAM on desktop and server CPUs)."""


def device_facts(world: World) -> DeviceFacts:
    """Return the machine; nothing is known of one that is elsewhere."""
    host = world.host
    width = world.link.slot_width
    gpus = tuple(card.facts(i, width=width) for i, card in enumerate(world.cards))
    silent: dict[str, Any] = dict.fromkeys(world.sight.silent)
    gpus = tuple(replace(gpu, **silent) for gpu in gpus)
    if world.health.virtual:
        gpus = tuple(replace(gpu, virtual=True) for gpu in gpus)
    return made(
        DeviceFacts,
        gpus=gpus if world.sight.gpus else None,
        gpus_reason=None if world.sight.gpus else "no GPU library answered",
        private_pids=world.sight.private_pids,
        on_battery=world.on_battery,
        power_profile=world.power_profile,
        cpu_governor=world.governor,
        cpu_physical_cores=host.physical,
        cpu_logical_cores=host.logical,
        cpu_performance_cores=host.fast_cores if host.slow_cores else None,
        ram_bytes=int(host.ram_gib * GIB),
        ram_bandwidth_bytes_per_s=host.ram_gb_s * MEASURED * 1e9 if world.sight.ram_known else None,
        ram_bandwidth_source="measured" if world.sight.ram_known else None,
    )


def server_facts(world: World) -> ServerFacts:
    """Return what the engine says of itself, and its command line."""
    engine, kind = world.engine, world.engine.kind
    llama = not engine.is_torch
    loaded, on_gpu = _loaded(world)
    hidden = world.waits.remote or world.sight.server_from_s == FOREVER
    return made(
        ServerFacts,
        kind=kind,
        url=f"http://127.0.0.1:{PORTS[kind]}",
        version=engine.version,
        local=not world.waits.remote,
        pid=None if hidden else SERVER_PID,
        unmapped="the engine runs on another machine" if world.waits.remote else None,
        context_tokens=engine.context,
        slots=engine.slots if llama else None,
        gpu_layers=engine.gpu_layers if llama else None,
        threads=engine.threads if llama else None,
        kv_type_k=engine.kv_type if llama else None,
        kv_type_v=engine.kv_type if llama else None,
        flash_attention=engine.flash_attention if llama else None,
        memory_mapped=engine.memory_mapped if llama else None,
        speculative=engine.speculative,
        slept=world.waits.slept,
        uptime_s=200.0 if world.past.fresh else 36000.0,
        gpu_indices=_indices(world),
        batch_tokens=2048 if llama else None,
        micro_batch_tokens=engine.micro_batch if llama else None,
        cpu_moe_layers=engine.cpu_moe_layers or None,
        kv_on_gpu=engine.kv_on_gpu if llama else None,
        split_mode=engine.split_mode if kind == "llama-server" else None,
        tensor_parallel=engine.tensor_parallel if not llama else None,
        loaded_bytes=loaded,
        loaded_gpu_bytes=on_gpu,
        loaded_models=(world.model.name,) if kind == "ollama" else None,
        kv_cache_tokens=engine.context * engine.slots if llama else engine.kv_tokens or 60_000,
        started_unix_s=None if hidden else 1.8e9 - (200.0 if world.past.fresh else 36000.0),
        template_habits=engine.template_habits,
        gpu_memory_ratio=None if llama else engine.memory_ratio,
        prefix_caching=None if llama else engine.prefix_caching,
        eager=None if llama else engine.eager,
        cpu_offload_bytes=int(engine.offload_gib * GIB) or None,
        unified_memory=engine.unified_memory if llama else None,
    )


def _indices(world: World) -> tuple[int, ...] | None:
    sight = world.sight
    if world.waits.remote or sight.private_pids or world.host.system == "wsl2":
        return None
    if sight.server_from_s == FOREVER:
        return None
    return tuple(i for i in range(len(world.cards)) if server_bytes(world, i))


def _loaded(world: World) -> tuple[int | None, int | None]:
    """Ollama's word. It does not know what the driver moved, so a spill looks wholly loaded."""
    if world.engine.kind != "ollama":
        return None, None
    whole = world.model.file_bytes(world.quantisation) + world.reserved_kv_bytes
    whole += buffer_bytes(world)
    known = world.placement.gpu_known
    ratio = world.placement.gpu_ratio if known is None else known
    return int(whole), int(whole * ratio)


def activity(world: World, trace: Trace) -> EngineActivity | None:
    """Return what the engine's counters gained meanwhile, for an engine that has any."""
    request, others = world.request, world.others
    if not _has_gauges(world) or not world.engine.metrics:
        return None
    neighbours = round(others.neighbours.value)
    alone = neighbours == 0 and world.waits.in_flight == 0
    torch, vllm = world.engine.is_torch, world.engine.kind == "vllm"
    sglang = torch and not vllm
    engine_slots = world.engine.slots if world.waits.in_flight and not torch else 1
    per_pass = 1 + sum(world.work.acceptance**n for n in range(1, world.work.drafted + 1))
    rounds = int(request.completion / per_pass)
    drafted = rounds * world.work.drafted
    return made(
        EngineActivity,
        span_s=trace.last_s + 0.1,
        alone=alone,
        running_max=1 + neighbours if alone else max(1 + neighbours, engine_slots),
        waiting_max=world.work.waiting + (world.waits.in_flight if world.waits.queue_s else 0),
        kv_used_max_ratio=world.work.kv_used if torch else None,
        preemptions=world.work.preemptions if vllm else None,
        prompt_tokens=request.prompt * (1 + neighbours // 2),
        cached_tokens=request.cached,
        queue_s=world.waits.queue_s if vllm else None,
        prefill_s=trace.first_s - trace.prefill_from_s if alone and not sglang else None,
        decode_s=trace.last_s - trace.first_s if alone and not sglang else None,
        drafted=drafted or None,
        accepted=int(rounds * (per_pass - 1)) if drafted else None,
    )


def neighbours(world: World, trace: Trace) -> Neighbours:
    """Return the other requests, as the proxy counted them or as the engine's own gauges did."""
    level, waits = world.others.neighbours, world.waits
    length = max(trace.last_s - trace.first_s, 1e-6)
    overlap = min(trace.last_s, level.until_s) - max(trace.first_s, level.from_s)
    share = min(max(overlap / length, 0.0), 1.0)
    seen = world.others.via_proxy
    counted = not seen and _has_gauges(world) and has(Neighbours, "counted")
    beside = level.value if seen or counted else 0.0
    return made(
        Neighbours,
        in_flight_at_send=round(level.at(0.0)) + waits.in_flight if seen else 0,
        decode_mean=beside * share,
        decode_max=round(beside) if share else 0,
        counted=counted and beside > 0,
        abandoned=_abandoned(world),
        **_crowd(world),
    )


def _abandoned(world: World) -> Abandoned | None:
    """Return who left: an engine that goes on for them shows it, if it is looked at."""
    left_s, waits = world.waits.left_s, world.waits
    if left_s is None:
        return None
    seen_s = max(waits.queue_s - LOOK_S, 0.1) if waits.queue_s else 0.0
    return Abandoned(count=1, left_s=left_s, seen_s=seen_s if _has_gauges(world) else None)


def _crowd(world: World) -> dict[str, Any]:
    """Return who was there while the request waited, where the contract has a place for it."""
    waits, kind = world.waits, getattr(contract_of_cases, "Concurrency", None)
    if kind is None or not waits.queue_s or not waits.in_flight:
        return {}
    seen, gauges = world.others.via_proxy, _has_gauges(world)
    reading = waits.behind_prompt
    waiting = made(
        kind,
        served_first=waits.in_flight if seen else 0,
        reading_s=waits.queue_s if seen and reading else 0.0,
        reading_id="0199f3c2-0000-7000-8000-000000000001" if seen and reading else None,
        looks=max(round(waits.queue_s / LOOK_S), 1) if gauges else 0,
        full_ratio=(0.0 if reading else 1.0) if gauges else None,
        others_mean=float(waits.in_flight) if gauges else None,
        others_reading_ratio=(1.0 if reading else 0.0) if gauges else None,
    )
    return {"waiting": waiting}


def _has_gauges(world: World) -> bool:
    """Whether the engine tells how many it serves: llama-server by its slots, without --metrics."""
    told = world.engine.kind == "llama-server" or (world.engine.is_torch and world.engine.metrics)
    return told and world.sight.gauges and not world.waits.remote


def prompt(world: World) -> PromptPrefix | None:
    """Return how the prompt compares with earlier ones."""
    request = world.request
    chars = request.prompt * CHARS_PER_TOKEN
    if request.previous_age_s is None:
        return PromptPrefix(chars=chars, common_prefix_chars=0, shared_ratio=0.0)
    common = int(chars * request.common)
    return PromptPrefix(
        chars=chars,
        common_prefix_chars=common,
        shared_ratio=request.common if request.shared is None else request.shared,
        first_difference=min(common, 4000),
        difference_message=0 if request.common < 0.2 else 4,
        difference_role="system" if request.common < 0.2 else "user",
        difference_kind=request.difference,
        others_since=request.others_since,
        others_common_chars=int(chars * request.others_common) if request.others_since else None,
        previous_chars=common if request.grew else int(chars * 0.98),
        granularity_chars=64,
        previous_age_s=request.previous_age_s,
    )


def baseline(world: World, well_tps: float, same_tps: float, dice: Random) -> Baseline:
    """Return what requests of this setup gave before; it learns from those that were well."""
    past = world.past
    if past.before == "nothing" or not past.count:
        return Baseline()
    usual_tps = (well_tps if past.before == "well" else same_tps) * dice.gauss(1, 0.025)
    well, anew = past.before == "well", past.fresh or world.waits.load_s > 0
    return made(
        Baseline,
        count=past.count if well else 0,
        decode_tps=usual_tps if well else None,
        decode_p10_tps=usual_tps * dice.uniform(0.92, 0.985) if well else None,
        usual_decode_tps=None if anew else usual_tps,
        healthy_here=past.count if well and not anew else 0,
    )


def history(world: World, case: Case, well_tps: float, same_tps: float, dice: Random) -> History:
    """Return the loads that were seen, and the best that was seen of rate, clocks and power."""
    past = world.past
    card = world.cards[0] if world.cards else None
    well = past.before == "well" and past.count > 0
    best = well_tps * dice.uniform(1.01, 1.06) if well else None
    week_ago = {"nothing": None, "well": well_tps, "same": same_tps}[past.before]
    return made(
        History,
        loads=_loads(world, dice) if past.loads_seen else (),
        best_sm_clock_mhz=int(card.sm_mhz * 0.95) if well and card else None,
        best_memory_clock_mhz=card.busy_memory_mhz if well and card else None,
        best_power_w=card.power_w * world.nature.decode_power if well and card else None,
        judged_recently=max(past.count, past.slow_recently),
        causes_recently=past.causes,
        best_decode_tps=best,
        best_prefill_tps=_best_prefill_tps(world) if well else None,
        week_ago_decode_tps=None if week_ago is None else week_ago * dice.uniform(0.93, 0.98),
        other_version="other" if past.other_build else None,
        other_version_decode_tps=well_tps * dice.gauss(1, 0.02) if past.other_build else None,
        other_version_count=past.other_build,
        served_before=None if past.fresh or not past.count else past.count,
        served_alike=None if past.fresh or not past.count else past.count,
    )


def _best_prefill_tps(world: World) -> float | None:
    """Return what a prompt of 2,000 tokens gave at best, when all was well."""
    if not world.cards:
        return None
    well = replace(world, work=Engineering(), others=Others(), health=Health(), request=Request())
    return 2000 / prefill_s(replace(well, placement=Placement()), 2000, 0.93, 1.0)


def _loads(world: World, dice: Random) -> tuple[ModelLoad, ...]:
    past = world.past
    held = sum(server_bytes(world, i) for i in range(len(world.used_cards)))
    room = sum(card.bytes for card in world.used_cards) - 0.6 * GIB
    own = world.model.facts(world.quantisation).name
    idle_s = dice.uniform(20, 190) if past.fresh else dice.uniform(200, 5000)
    age_s = 2.0 + world.waits.load_s if world.waits.load_s > 1 else idle_s
    loads = []
    for at in range(past.loads):
        others = past.others_at_load_gib * GIB if at == 0 else 0.0
        leaked = past.leaked_gib * GIB if at == 0 else 0.0
        bytes_ = held if at == 0 or past.earlier_gpu_gib is None else past.earlier_gpu_gib * GIB
        name = past.models[at % len(past.models)] if past.models and at else own
        loads.append(
            ModelLoad(
                age_s=age_s + at * dice.uniform(100, 900),
                model=name,
                context_tokens=world.engine.context,
                load_s=world.waits.load_s or dice.uniform(2, 9),
                server_gpu_bytes=int(bytes_) or None,
                free_before_bytes=int(max(room - others - leaked, 0)),
                others_bytes=int(others + 150 * 2**20),
            )
        )
    return tuple(loads)
