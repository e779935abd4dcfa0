"""Whether loaded models fit, for /slowtok/status. Pure.

It is said with the doctor's words and numbers: without traffic there is no case
that a detector could judge, and the doctor's check needs none.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from slowtok.detectors.analysis.gpu.vram import newest_split
from slowtok.detectors.case.machine import GpuSample
from slowtok.detectors.expectation.footprint import context_that_fits, footprint, reserved_tokens
from slowtok.proxy.inspection.memory import check_memory
from slowtok.proxy.inspection.seen import EngineSeen, Seen, ServingSeen
from slowtok.proxy.outputs.record import known


def fit_status(seen: Seen, engine: EngineSeen) -> list[dict[str, Any]]:
    """Return an entry for each model that an engine has in memory.

    `state` is `ok`, `note` (as it was asked for), `warn` (it costs speed) or `unknown`; `said` and
    `advice` are sentences; the rest are numbers, those that are known. `most_context_tokens` is
    the context that would fit for sure, over all slots, with nobody else on the GPUs.
    """
    return [_entry(seen, engine, serving) for serving in engine.serving]


def _entry(seen: Seen, engine: EngineSeen, serving: ServingSeen) -> dict[str, Any]:
    alone = replace(engine, serving=(serving,))
    checks = check_memory(replace(seen, engines=(alone,)))
    check = next((check for check in checks if check.name == "fit"), None)
    entry = {"model": serving.label, "most_context_tokens": _most_context(seen, engine, serving)}
    if check is None:  # an engine elsewhere: its memory is not seen
        need = footprint(serving.model, serving.server)
        found: dict[str, Any] = known(
            entry | {"state": "unknown", "weights_bytes": need.weights_bytes if need else None}
        )
        return found
    told = {"state": check.state, "said": check.said, "advice": check.advice}
    shown: dict[str, Any] = known(entry | told | dict(check.numbers))
    return shown


def _most_context(seen: Seen, engine: EngineSeen, serving: ServingSeen) -> int | None:
    usable = sum(_usable_bytes(seen, engine, serving))
    if not usable or reserved_tokens(serving.server) is None:
        return None
    return context_that_fits(serving.model, serving.server, usable)


def _usable_bytes(seen: Seen, engine: EngineSeen, serving: ServingSeen) -> Iterator[int]:
    for gpu in seen.gpus_of(serving.server):
        samples: list[GpuSample] = [s for s in engine.gpu if s.index == gpu.index]
        room = newest_split(samples)
        if room is not None and not gpu.unified_memory:
            yield room.usable_bytes
