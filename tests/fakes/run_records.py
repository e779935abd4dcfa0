"""Records of an agent's run, as the log has them."""

from typing import Any

from slowtok.proxy.runs.turn import Turn, turn_of
from slowtok.proxy.runtime.utc import utc_text

BEGAN_UNIX_S = 1_800_000_000.0


def run_record(
    turn: int,
    at_s: float,
    *,
    queue_s: float = 0.0,
    prefill_s: float = 1.0,
    decode_s: float = 1.0,
    more_s: float = 0.0,
    run: dict[str, Any] | None = None,
    tokens: dict[str, int] | None = None,
    lost_s: dict[str, float] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """The record of one request that began `at_s` after its run; `more_s` nobody explains."""
    parts_s = {"queue": queue_s, "prefill": prefill_s, "decode": decode_s}
    parent = {"parent": turn - 1} if turn > 1 else {}
    findings = [
        {
            "cause": cause,
            "lost_ms": s * 1000,
            "phase": "prefill",
            "remedy": f"mend {cause}",
            "summary": "",
        }
        for cause, s in (lost_s or {}).items()
    ]
    return {
        "event": "request",
        "schema": 1,
        "ts": utc_text(BEGAN_UNIX_S + at_s),
        "id": f"request-{(run or {}).get('id', 'run-1')}-{turn}",
        "model": "m",
        "status": 200,
        "ended": "stop",
        "timing": {
            **{f"{part}_ms": s * 1000 for part, s in parts_s.items()},
            "total_ms": (sum(parts_s.values()) + more_s) * 1000,
        },
        "tokens": {"prompt": 1000, "cached": 900, "completion": 20, **(tokens or {})},
        "verdict": "slow" if findings else "normal",
        "findings": findings,
        "run": {"id": "run-1", "by": "prompt", "turn": turn, **parent, **(run or {})},
        **fields,
    }


def run_turn(turn: int, at_s: float, **facts: Any) -> Turn:
    """The same as a turn."""
    return turn_of(run_record(turn, at_s, **facts))
