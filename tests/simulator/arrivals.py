"""What the proxy sees of a trace: when bytes came, and what the engine says of its own times."""

import statistics
from bisect import bisect_left
from itertools import pairwise
from random import Random

from simulator.run import Trace
from simulator.world import World
from slowtok.detectors.case.case import EngineTimings, Timeline, Tokens

SENT_AT_S = 5000.0
KEEP_STEPS = 4096


def timeline(world: World, trace: Trace, dice: Random) -> Timeline:
    """Return the request as the proxy timed it."""
    request, waits = world.request, world.waits
    arrived = _late(world, [SENT_AT_S + s for s in _arrivals(world, trace, dice)])
    gaps = [later - earlier for earlier, later in pairwise(arrived)] or [0.0]
    first, last = arrived[0], arrived[-1]
    end = last + 0.0005
    shown = request.stream
    return Timeline(
        request_id=f"0199f3c2-0000-7000-8000-{dice.randrange(16**12):012x}",
        path="/api/chat" if world.engine.api == "native" else "/v1/chat/completions",
        model=world.model.facts(world.quantisation).name,
        stream=shown,
        status=200,
        ended="stop",
        started_unix_s=1.8e9,
        accepted_at_s=SENT_AT_S - 0.0004 - waits.proxy_s,
        sent_at_s=SENT_AT_S,
        headers_at_s=_headers_at_s(world, trace, first, end),
        first_token_at_s=first if shown else None,
        last_token_at_s=last if shown else None,
        last_byte_at_s=end,
        delivered_at_s=end + 0.0003 + waits.blocked_s,
        ended_at_s=end + 0.0006 + waits.blocked_s,
        token_at_s=tuple(arrived) if shown else (),
        itl_p50_s=statistics.median(gaps) if shown else None,
        itl_p99_s=sorted(gaps)[int(0.99 * (len(gaps) - 1))] if shown else None,
        tokens=_tokens(world),
        engine=_word(world, trace, dice),
        client_blocked_s=waits.blocked_s,
        proxy_s=0.0003 + waits.proxy_s,
        loop_lag_s=0.002 + max(waits.proxy_lag_s, waits.proxy_s),
    )


def _arrivals(world: World, trace: Trace, dice: Random) -> list[float]:
    """Times of chunks on the engine's own clock, from the passes by interpolation."""
    times, made = zip(*trace.passes, strict=True)
    per_chunk = world.request.chunk_tokens * (
        1 + sum(world.work.acceptance**n for n in range(1, world.work.drafted + 1))
    )
    count, jitter = max(int(made[-1] / per_chunk), 2), world.nature.jitter
    per_token = (times[-1] - times[0]) / max(made[-1] - 1, 1)
    found = []
    for i in range(count):
        token = 1 + (made[-1] - 1) * i / (count - 1)
        at = min(max(bisect_left(made, token - 1e-9), 1), len(made) - 1)
        width = made[at] - made[at - 1]
        part = (token - made[at - 1]) / width if width > 0 else 1.0
        found.append(times[at - 1] + part * (times[at] - times[at - 1]))
    noisy = [at + abs(dice.gauss(0, jitter * per_token)) for at in found]
    step = -(-len(noisy) // KEEP_STEPS)
    return sorted(noisy[::step] + ([noisy[-1]] if step > 1 else []))


def _late(world: World, arrived: list[float]) -> list[float]:
    """Arrivals behind a slow or bursty way, or a proxy that wakes late."""
    waits = world.waits
    burst = waits.network_burst_s or waits.proxy_lag_s
    first = arrived[0]
    if waits.network_ratio:
        arrived = [first + 0.03 + (at - first) * (1 + waits.network_ratio) for at in arrived]
    if burst:
        arrived = [first + -(-(at - first) // burst) * burst for at in arrived]
    return arrived


def _headers_at_s(world: World, trace: Trace, first: float, end: float) -> float:
    """llama-server sends its head when it starts on the prompt, the others with the first token."""
    if not world.request.stream:
        return end
    if world.engine.kind == "llama-server":
        return min(SENT_AT_S + trace.prefill_from_s + 0.002, first)
    return SENT_AT_S + 0.004 if world.engine.is_torch else first


def _tokens(world: World) -> Tokens:
    request, work = world.request, world.work
    tells_drafts = work.drafted and world.engine.kind == "llama-server"
    per_pass = 1 + sum(work.acceptance**n for n in range(1, work.drafted + 1))
    rounds = int(request.completion / per_pass)
    return Tokens(
        prompt=request.prompt,
        cached=None if world.engine.is_old_ollama else request.cached,
        completion=request.completion,
        reasoning=round(request.completion * request.reasoning_ratio) or None,
        drafted=rounds * work.drafted if tells_drafts else None,
        accepted=int(rounds * (per_pass - 1)) if tells_drafts else None,
    )


def _word(world: World, trace: Trace, dice: Random) -> EngineTimings | None:
    """Return the engine's own timings: llama-server always, the others on some ways only."""
    prefill_s = trace.first_s - trace.prefill_from_s
    decode_s = (trace.last_s - trace.first_s) * dice.gauss(1, 0.002)
    kind = world.engine.kind
    if kind == "llama-server":
        return EngineTimings(prefill_s=prefill_s, decode_s=decode_s)
    if kind == "ollama":
        if world.engine.api != "native":
            told = EngineTimings(prefill_s=prefill_s, decode_s=decode_s)
            return None if world.engine.is_old_ollama else told
        load_s = world.waits.load_s + dice.uniform(0.03, 0.09)
        return EngineTimings(load_s=load_s, prefill_s=prefill_s, decode_s=decode_s)
    if not world.engine.per_request_metrics:
        return None
    return EngineTimings(queue_s=world.waits.queue_s, prefill_s=prefill_s, decode_s=decode_s)
