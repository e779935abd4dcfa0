"""Cases for the page: simulated requests, dated so that they look as if they had just ended."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count, islice

from simulator.scenarios import build
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.diagnose import diagnose

NAMES = (
    "thermal-throttle",
    "model-too-big",
    "vram-spill",
    "queued",
    "prompt-cache-miss",
    "power-cap",
    "host-contention",
)


@cache
def simulated(name: str, number: int = 0) -> Case:
    return next(islice(_named(name), number, None))


def _named(name: str) -> Iterator[Case]:
    """The runs whose fault is named, in turn: what the page shows needs no luck."""
    for at in count():
        case = build(name, at)[1]
        if name in list(diagnose(case).findings)[:1]:
            yield case


def dated(
    case: Case, started_unix_s: float, *, model: str | None = None, engine: str | None = None
) -> Case:
    """The case as if it had begun then; of another model and engine where they are given."""
    line = replace(
        case.timeline,
        request_id=f"0199f3c2-0000-7000-8000-{int(started_unix_s * 1000):012x}",
        started_unix_s=started_unix_s,
        model=model or case.timeline.model,
    )
    server = replace(case.server, name=engine or case.server.name)
    return replace(case, timeline=line, server=server)
