"""From what was seen to checks, and from both to one JSON object. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from slowtok.proxy.inspection.check import Check
from slowtok.proxy.inspection.engines import check_engines
from slowtok.proxy.inspection.flags import check_flags
from slowtok.proxy.inspection.gpu import check_gpus
from slowtok.proxy.inspection.hidden import check_hidden
from slowtok.proxy.inspection.host import check_host
from slowtok.proxy.inspection.memory import check_memory
from slowtok.proxy.inspection.seen import EngineSeen, Seen
from slowtok.proxy.inspection.shared import check_shared
from slowtok.proxy.outputs.record import known
from slowtok.proxy.runtime.version import own_version

SCHEMA = 1
REPORT_IT = "this is a bug in slowtok: please report it with what --json says"

Examiner = Callable[[Seen], Iterator[Check]]
EXAMINERS: tuple[Examiner, ...] = (
    check_engines,
    check_memory,
    check_flags,
    check_gpus,
    check_host,
    check_shared,
    check_hidden,
)


def examine(seen: Seen) -> tuple[Check, ...]:
    """Return all checks, in the order in which people read them."""
    return tuple(check for examiner in EXAMINERS for check in _attempt(examiner, seen))


def _attempt(examiner: Examiner, seen: Seen) -> Iterator[Check]:
    """Yield an examiner's checks; one that breaks costs its own and says so."""
    try:
        yield from examiner(seen)
    except Exception as error:  # noqa: BLE001 - one fault must not hide everything else
        said = f"{examiner.__name__} failed ({type(error).__name__}: {error})"
        yield Check(area="hidden", name="broken", state="unknown", said=said, advice=REPORT_IT)


def as_json(seen: Seen, checks: Sequence[Check]) -> dict[str, Any]:
    """Return the whole look as one object; what is not known is left out."""
    states = Counter(check.state for check in checks)
    device = asdict(seen.device)
    gpus = device.pop("gpus") or []
    newest = {sample.index: asdict(sample) for sample in seen.gpu}
    whole = {
        "schema": SCHEMA,
        "version": own_version(),
        "inspected": seen.is_anything,
        "summary": {state: states[state] for state in ("ok", "note", "warn", "unknown")},
        "engines": [_engine(engine) for engine in seen.engines],
        "gpus": [{**gpu, "now": newest.get(gpu["index"])} for gpu in gpus],
        "machine": device,
        "checks": [_check(check) for check in checks],
    }
    found: dict[str, Any] = known(whole)
    return found


def _engine(engine: EngineSeen) -> dict[str, Any]:
    return {
        **asdict(engine.server),
        "name": engine.name,
        "url": engine.url,
        "answers": engine.answers,
        "is_slowtok": engine.is_slowtok,
        "offers": list(engine.models),
        "models": [
            {**asdict(serving.model), "server": asdict(serving.server)}
            for serving in engine.serving
        ],
    }


def _check(check: Check) -> dict[str, Any]:
    # asdict() cannot be used: the numbers may be any kind of mapping
    return {
        "area": check.area,
        "name": check.name,
        "about": check.about,
        "state": check.state,
        "said": check.said,
        "advice": check.advice,
        "basis": check.basis,
        "numbers": dict(check.numbers),
    }
