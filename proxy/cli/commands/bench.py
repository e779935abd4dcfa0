"""`slowtok bench`: measure, compare, say what to try next and how to measure that again."""

import asyncio
import secrets
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from slowtok.config.settings import Settings
from slowtok.proxy.cli.bench import layout
from slowtok.proxy.cli.bench.advice import AdviceStep, again, next_steps
from slowtok.proxy.cli.bench.comparison import (
    Change,
    Difference,
    cause_change,
    changes,
    differences,
)
from slowtok.proxy.cli.bench.figures import figures_of
from slowtok.proxy.cli.bench.measure import measure, pace_of
from slowtok.proxy.cli.bench.protocol import (
    STANDARD_RUNS,
    STANDARD_TOKENS,
    Protocol,
    warm_up,
)
from slowtok.proxy.cli.bench.result import (
    NOT_TOLD,
    BadResult,
    Result,
    engine_of,
    read_result,
    setup_of,
)
from slowtok.proxy.cli.bench.stage import (
    BenchError,
    BenchModelError,
    NoEngine,
    pick_model,
    set_stage,
)
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.demo.children import DemoError
from slowtok.proxy.cli.render.console import json_text, plain
from slowtok.proxy.inspection.check import Check
from slowtok.proxy.inspection.examine import examine
from slowtok.proxy.inspection.look import take_look
from slowtok.proxy.runtime.state_dir import replace_file

DONE, FAILED, USAGE, NO_ENGINE = 0, 1, 2, 3
KEPT = "bench.json"
MAX_PROMPT_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What the command line asks for; None where it leaves the choice."""

    model: str | None = None
    tokens: int | None = None
    runs: int | None = None
    prompt: Path | None = None
    save: Path | None = None
    compare: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOutcome:
    """A benchmark that is done, with all that is shown of it."""

    result: Result
    steps: list[AdviceStep]
    before: Result | None
    found: list[Change]
    differ: list[Difference]
    where: str


class _Usage(Exception):
    """An argument that cannot be used. The text says which and why."""


def run_bench(settings: Settings, asked: BenchOptions) -> int:
    """Measure and print. Returns 2 for a file that cannot be used, 3 where no engine answers."""
    screen = Console(stderr=True, highlight=False)
    try:
        before = _read_before(asked.compare)
        protocol = _protocol(asked, before)
        _check_writable(asked.save)
        outcome = asyncio.run(_bench(settings, asked, protocol, before, screen))
    except (_Usage, BenchModelError) as error:
        return complain(str(error), USAGE)
    except NoEngine as error:
        return complain(str(error), NO_ENGINE)
    except (BenchError, DemoError) as error:
        return complain(str(error), FAILED)
    except KeyboardInterrupt:
        return complain("stopped; nothing was saved", FAILED)
    return _finish(settings, asked, outcome)


async def _bench(
    settings: Settings,
    asked: BenchOptions,
    protocol: Protocol,
    before: Result | None,
    screen: Console,
) -> BenchOutcome:
    nonce = secrets.token_hex(4)
    with screen.status("looking for slowtok") as status:
        async with set_stage(settings, status.update) as stage:
            known = before is not None and before.model != NOT_TOLD
            wanted = asked.model or (before.model if before and known else None)
            model = await pick_model(stage, wanted)
            client = stage.client(model)
            status.update("warming up")
            warm = (await client.send(warm_up(nonce))).record
            facts = await stage.ask("/slowtok/status")
            engine = engine_of(facts, model) or {}
            status.stop()
            protocol = protocol.sized(warm, engine.get("context_tokens"))
            shots = protocol.shots(nonce, str(engine.get("kind")))
            runs = await measure(client, shots, pace_of(warm), screen)
            status.start()
            status.update("looking for what costs speed")
            checks = await _examined(settings, engine)
    result = Result(
        at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        protocol=protocol.facts(),
        setup=setup_of(facts, model),
        figures=tuple(figures_of(runs)),
        runs=tuple(runs),
    )
    if not result.figures:
        raise BenchError("the engine reported no rates: neither token counts nor times")
    return BenchOutcome(
        result=result,
        steps=next_steps(runs, checks),
        before=before,
        found=changes(before.figures, result.figures) if before else [],
        differ=_differ(before, result) if before else [],
        where=f"slowtok of its own for {engine.get('url')}" if stage.own else stage.url,
    )


async def _examined(settings: Settings, engine: Any) -> tuple[Check, ...]:
    """Look as `slowtok doctor` does, at this engine; what breaks there costs only the advice."""
    url = engine.get("url")
    try:
        looked = settings.model_copy(update={"upstream": (url,)}) if url else settings
        return examine(await take_look(looked, lambda _: None))
    except Exception:  # noqa: BLE001 - see above
        return ()


def _differ(before: Result, after: Result) -> list[Difference]:
    return differences(
        {"protocol": before.protocol, **before.setup}, {"protocol": after.protocol, **after.setup}
    )


def _protocol(asked: BenchOptions, before: Result | None) -> Protocol:
    """Return what to run: as asked, else as in the result to compare with, else the standard."""
    told = before.protocol if before else {}
    protocol = Protocol(
        tokens=asked.tokens or _count(told.get("tokens")) or STANDARD_TOKENS,
        runs=asked.runs or _count(told.get("runs")) or STANDARD_RUNS,
        own_prompt=_read_prompt(asked.prompt) if asked.prompt else None,
        rules=_count(told.get("prefill_rules")),
    )
    if before and protocol.prompt_name != told.get("prompt"):
        raise _Usage(
            f"--compare {asked.compare}: it was made with another prompt ({told.get('prompt')}); "
            "give the same --prompt FILE"
        )
    return protocol


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 < value < 10**7 else None


def _read_prompt(path: Path) -> str:
    try:
        text = path.read_bytes()[: MAX_PROMPT_BYTES + 1].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _Usage(
            f"--prompt {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}"
        ) from None
    if not text.strip() or len(text) > MAX_PROMPT_BYTES:
        raise _Usage(f"--prompt {path}: it is {'empty' if not text.strip() else 'too long'}")
    return text


def _read_before(path: Path | None) -> Result | None:
    if path is None:
        return None
    try:
        return read_result(path.read_bytes())
    except (OSError, BadResult) as error:
        raise _Usage(f"--compare {path}: {getattr(error, 'strerror', None) or error}") from None


def _check_writable(path: Path | None) -> None:
    """Find out before the minutes are spent."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise _Usage(f"--save {path}: {'it is a directory' if path.is_dir() else 'no such folder'}")


def _finish(settings: Settings, asked: BenchOptions, outcome: BenchOutcome) -> int:
    """Keep the result, then show it; one that cannot be kept is shown all the same."""
    whole = outcome.result.as_json()
    code, saved = DONE, asked.save or settings.state_path / KEPT
    try:
        replace_file(saved, orjson.dumps(whole, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        code = complain(f"{saved} could not be written: {error.strerror}", FAILED)
    kept = saved if code == DONE else None
    command = again(saved, _options(settings, asked))
    if settings.json_lines:
        whole |= {
            "saved": str(kept) if kept else None,
            "compared": outcome.before
            and {
                "with": str(asked.compare),
                "at": outcome.before.at,
                "changes": [{**asdict(c), "ratio": round(c.ratio, 4)} for c in outcome.found],
                "causes": asdict(cause_change(outcome.before.runs, outcome.result.runs)),
                "differences": [asdict(d) for d in outcome.differ],
            },
            "next": [asdict(step) for step in outcome.steps],
            "again": command if kept else None,
        }
        sys.stdout.write(json_text(whole) + "\n")
    else:
        _show(asked, outcome, command, kept)
    return code


def _show(asked: BenchOptions, outcome: BenchOutcome, command: str, kept: Path | None) -> None:
    screen = Console(highlight=False)
    screen.print(layout.head(outcome.result, outcome.where))
    screen.print(layout.runs_table(outcome.result.runs))
    screen.print()
    screen.print(layout.figures_table(outcome.result.figures))
    tokens = int(outcome.result.protocol["tokens"])
    if early := layout.short_answers(outcome.result.runs, tokens):
        screen.print(early, style="yellow")
    if outcome.before is not None:
        causes = cause_change(outcome.before.runs, outcome.result.runs)
        shown = layout.comparison(
            outcome.before, outcome.found, causes, outcome.differ, str(asked.compare)
        )
        screen.print(shown)
    screen.print(layout.what_next(outcome.steps))
    if kept is not None:
        said = "Then measure again:" if outcome.steps else "After a change, measure again:"
        screen.print(f"\n{said}")
        screen.out(f"  {plain(command)}", highlight=False)  # in one line, to be copied


def _options(settings: Settings, asked: BenchOptions) -> list[tuple[str, str | None]]:
    """Return the options without which the command would measure something else."""
    usual = settings.listen == "127.0.0.1:4141"
    return [
        *(("--upstream", value) for value in settings.upstream),
        ("--listen", None if usual else settings.listen),
        ("--model", asked.model),
        ("--prompt", str(asked.prompt) if asked.prompt else None),
    ]
