"""From counts to a report: one JSON object that every format shows. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from slowtok.proxy.cli.report.choice import Choice, Period
from slowtok.proxy.cli.report.tally import CACHE_MISS, UNEXPLAINED, Group, Loss, Tally
from slowtok.proxy.outputs.record import known
from slowtok.proxy.runs.turn import PHASES

SCHEMA = 1
MAX_MODELS, MAX_HOURS = 10, 5


def summarise(
    period: Period, now: Tally, before: Tally, *, choice: Choice, bad_lines: int
) -> dict[str, Any]:
    """Return the report on a period; `before` is what was counted in the one before."""
    report: dict[str, Any] = known(
        {
            "event": "report",
            "schema": SCHEMA,
            "since": period.since.isoformat(timespec="seconds"),
            "until": period.until.isoformat(timespec="seconds"),
            "only": choice.told() if choice != Choice() else None,
            "bad_lines": bad_lines,
            "requests": now.whole.requests,
            "generations": sum(now.verdicts.values()),
            "verdicts": {name: now.verdicts[name] for name in ("normal", "slow", "unknown")},
            "slow_phases": dict(now.slow_phases.most_common()),
            "failed": dict(now.failed.most_common()),
            "total_ms": round(now.whole.total_ms),
            "spent_ms": {phase: now.spent_ms[phase] for phase in PHASES},
            "lost_ms": round(now.whole.lost_ms),
            "lost_ratio": _share(now.whole.lost_ms, now.whole.total_ms),
            "tokens_generated": now.whole.generated,
            "decode_tps": _rounded(now.whole.decode_tps),
            "causes": _causes(now),
            "fix_first": _fix_first(now),
            "models": [_group({"model": name}, group) for name, group in _worst(now.models)],
            "clients": [_group({"client": name}, group) for name, group in _worst(now.clients)],
            "runs": now.runs.costliest(),
            "busiest_hours": [_group(_at(hour), group) for hour, group in _busiest(now)],
            "hours": [_group(_at(hour), group) for hour, group in sorted(now.hours.items())],
            "prompt_cache": _prompt_cache(now),
            "before": _before(period, before),
        }
    )
    return report


def _causes(tally: Tally) -> list[dict[str, Any]]:
    won_ms = tally.won_ms + tally.runs.won_ms()
    costliest = sorted(tally.causes.items(), key=lambda item: -item[1].lost_ms)
    return [_cause(name, loss, tally.whole.lost_ms, won_ms[name]) for name, loss in costliest]


def _cause(name: str, loss: Loss, all_lost_ms: float, won_ms: int) -> dict[str, Any]:
    return {
        "cause": name,
        "requests": loss.requests,
        "lost_ms": round(loss.lost_ms),
        "won_ms": won_ms,
        "share": _share(loss.lost_ms, all_lost_ms),
        "worst_id": loss.worst_id,
        "worst_model": loss.worst_model,
        "worst_ms": round(loss.worst_ms),
        "summary": loss.summary or None,
        "remedy": loss.remedy or None,
    }


def _fix_first(tally: Tally) -> dict[str, Any] | None:
    """Return the cause with a name and a remedy that would give most wall time back."""
    named = [c for c in _causes(tally) if c["cause"] != UNEXPLAINED and c["remedy"]]
    return max(named, key=lambda c: (c["won_ms"], c["lost_ms"]), default=None)


def _worst(groups: Mapping[str, Group]) -> list[tuple[str, Group]]:
    ranked = sorted(groups.items(), key=lambda m: (-m[1].lost_ms, -m[1].requests))
    return ranked[:MAX_MODELS]


def _busiest(tally: Tally) -> list[tuple[datetime, Group]]:
    ranked = sorted(tally.hours.items(), key=lambda hour: (-hour[1].requests, hour[0]))
    return ranked[:MAX_HOURS]


def _at(hour: datetime) -> dict[str, Any]:
    return {"hour": hour.isoformat(timespec="minutes")}


def _group(head: Mapping[str, Any], group: Group) -> dict[str, Any]:
    first = group.causes.most_common(1)
    return {
        **head,
        "requests": group.requests,
        "slow": group.slow,
        "slow_ratio": _share(group.slow, group.judged),
        "total_ms": round(group.total_ms),
        "lost_ms": round(group.lost_ms),
        "decode_tps": _rounded(group.decode_tps),
        "first_cause": first[0][0] if first else None,
    }


def _prompt_cache(tally: Tally) -> dict[str, Any]:
    miss = tally.causes.get(CACHE_MISS, Loss())
    return {
        "prompt_tokens": tally.prompt_tokens,
        "cached_tokens": tally.cached_tokens,
        "cached_ratio": _share(tally.cached_tokens, tally.prompt_tokens),
        "computed_again_tokens": tally.wasted_tokens,
        "lost_ms": round(miss.lost_ms),
    }


def _before(period: Period, before: Tally) -> dict[str, Any] | None:
    """Return the period before in short; None where the log has nothing of it."""
    if not before.whole.requests:
        return None
    return {
        "since": period.before.since.isoformat(timespec="seconds"),
        "requests": before.whole.requests,
        "slow": before.whole.slow,
        "slow_ratio": _share(before.whole.slow, before.whole.judged),
        "lost_ms": round(before.whole.lost_ms),
        "lost_ratio": _share(before.whole.lost_ms, before.whole.total_ms),
        "decode_tps": _rounded(before.whole.decode_tps),
        "causes": {name: round(loss.lost_ms) for name, loss in before.causes.items()},
    }


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2)
