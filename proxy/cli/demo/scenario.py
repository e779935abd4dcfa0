"""`slowtok demo`: a real engine, a real model, real slowdowns, and what the proxy says of each.

The proxy is the command that a user would type, the client an ordinary one; what is slowed is
slowed for real: by busy processes, by a prompt that changes at its beginning, by a full engine.
"""

import asyncio
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import orjson
import psutil
from rich.console import Console

from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.demo import report, shots
from slowtok.proxy.cli.demo.children import DemoError, busy_cores, cores
from slowtok.proxy.cli.demo.client import Client
from slowtok.proxy.cli.demo.model import ModelFetchError, fetch_model
from slowtok.proxy.cli.demo.report import Show
from slowtok.proxy.cli.demo.shots import Outcome, Shot, ShotPace
from slowtok.proxy.cli.demo.stage import (
    USUAL_LISTEN,
    DemoStage,
    pick_listen,
    set_stage,
    why_elsewhere,
    why_not_there,
)
from slowtok.proxy.cli.render.units import counted

BUSY_PER_CORE = 2
BUSY_S = 6.0  # then the rest of the answer comes at full speed: the demo's time is bounded
BUSY_AHEAD_S = 0.3
LOOK_S = 0.5  # at what other programs do before it begins
APART_S = 0.2  # between requests that are sent at once: their order is then certain

USAGE = 2

INSTALL = "pip install 'slowtok[demo]'   (in a clone of the repository: make demo)"


def run_demo(
    *,
    model: Path | None = None,
    serve: bool = False,
    listen: str | None = None,
    state_dir: Path | None = None,
    ram_bandwidth: str | None = None,
    json: bool = False,
) -> int:
    """Run the demo.

    Returns 0 when it showed its point, 2 where an argument cannot be used, else 1; the reason is on
    the screen.
    """
    if model is not None and not model.is_file():
        return complain(f"--model {model}: no such file", USAGE)
    if listen is not None and (why := why_not_there(listen)):
        return complain(f"listen = {listen!r} (from arguments): {why}", USAGE)
    if importlib.util.find_spec("xllamacpp") is None:
        return _failed(f"the demo's engine is not installed: {INSTALL}")
    console = Console(stderr=json, highlight=False)
    try:
        show = _prepare(console, model)
        return asyncio.run(
            _run(
                show,
                serve=serve,
                listen=listen,
                state_dir=state_dir,
                ram_bandwidth=ram_bandwidth,
                json=json,
            )
        )
    except (DemoError, ModelFetchError) as error:
        return _failed(str(error))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _failed("stopped")


def _failed(reason: str) -> int:
    sys.stderr.write(f"slowtok: {reason}\n")
    return 1


def _prepare(console: Console, model: Path | None) -> Show:
    if model is None:
        return Show(console=console, model=fetch_model(console=console), model_name="smollm2-135m")
    return Show(console=console, model=model, model_name=model.stem)


async def _run(
    show: Show,
    *,
    serve: bool,
    listen: str | None,
    state_dir: Path | None,
    ram_bandwidth: str | None,
    json: bool,
) -> int:
    _end_on_signals()
    others_cores = psutil.cpu_percent(LOOK_S) / 100 * (os.cpu_count() or 1)
    if notice := report.notice_of_others(others_cores, cores()):
        show.console.print(notice, style="yellow")
    with tempfile.TemporaryDirectory(prefix="slowtok-demo-") as scratch:
        if listen is None:
            listen = pick_listen(usual=serve)
            if serve and listen != USUAL_LISTEN:
                show.say(why_elsewhere())
        state, logs = state_dir or Path(scratch), Path(scratch)
        async with set_stage(
            show, listen=listen, state_dir=state, ram_bandwidth=ram_bandwidth, logs=logs
        ) as stage:
            await _play(show, stage.client)
            elapsed_s = time.monotonic() - show.began_at_s
            if json:
                found = report.to_json(show.outcomes, elapsed_s)
                sys.stdout.write(orjson.dumps(found).decode() + "\n")
                sys.stdout.flush()
            else:
                _finish(show, listen if serve else None, state_dir, elapsed_s)
            if serve:
                await _stay(stage)
    return 0 if report.convinces(show.outcomes) else 1


async def _play(show: Show, client: Client) -> None:
    show.scene("Healthy requests: slowtok learns what this machine gives")
    with show.waiting("warming up"):
        warm_ups = [(await client.send(shots.warm_up(n))).record for n in range(shots.WARM_UPS)]
    show.console.print(shots.WARM_UPS_SAID, style="dim")
    pace = shots.read_pace(warm_ups)
    if pace is None:
        raise DemoError("the records of the first requests have no rates")
    for number in range(1, len(shots.TOPICS) + 1):
        outcome = await show.fire(client, shots.healthy(number, pace.tokens))
        pace = pace.raised_by(outcome.record)
    await _starve(show, client, pace)
    await _converse(show, client, pace)
    await _rush(show, client, pace)


async def _starve(show: Show, client: Client, pace: ShotPace) -> None:
    count = BUSY_PER_CORE * cores()
    show.scene(f"{count} busy processes on {counted(cores(), 'core')}, for at most {BUSY_S:.0f} s")
    async with busy_cores(count, BUSY_S + BUSY_AHEAD_S):
        await asyncio.sleep(BUSY_AHEAD_S)
        await show.fire(client, shots.starved(pace.tokens))


async def _converse(show: Show, client: Client, pace: ShotPace) -> None:
    show.scene("An agent with a long system prompt, which then puts the time in front of it")
    for shot in shots.conversation(pace.rules, f"{datetime.now().astimezone():%c}"):
        await show.fire(client, shot)


async def _rush(show: Show, client: Client, pace: ShotPace) -> None:
    at_once = shots.rush(pace.tokens)
    show.scene(f"{len(at_once)} requests at once for an engine with {len(at_once) - 1} slots")

    async def later(delay_s: float, shot: Shot) -> Outcome:
        await asyncio.sleep(delay_s)
        return await client.send(shot)

    with show.waiting(f"{len(at_once)} requests at once"):
        sending = [asyncio.ensure_future(later(i * APART_S, s)) for i, s in enumerate(at_once)]
        try:
            outcomes = await asyncio.gather(*sending)
        finally:
            for task in sending:
                task.cancel()
    for outcome in outcomes:
        show.keep(outcome)


def _finish(show: Show, listen: str | None, state_dir: Path | None, elapsed_s: float) -> None:
    """Show the table, the worst request in full, and what to do next."""
    show.console.print(report.ending(show.outcomes))
    if not report.convinces(show.outcomes):
        show.console.print(report.NOT_CONVINCING, style="yellow")
    url = f"http://{listen}" if listen else None
    option = "" if listen in (None, USUAL_LISTEN) else f" --listen {listen}"
    steps = report.next_steps(url, _explain_command(show, listen, state_dir), option)
    show.console.print(steps)
    if (command := path_of_command()) is not None:
        show.console.print(f"slowtok is not on your PATH: call it as {command}", markup=False)
    show.console.print(f"[dim]The demo took {elapsed_s:.0f} s.[/]")


def path_of_command() -> Path | None:
    """Return where the command is if the shell does not find it by its name, as after `make`."""
    here = Path(sys.executable).with_name("slowtok")
    return here if shutil.which("slowtok") is None and here.exists() else None


def _explain_command(show: Show, listen: str | None, state_dir: Path | None) -> str | None:
    """Return the command that explains the slowest request; None where its record is gone."""
    slowest = report.worst(show.outcomes)
    if slowest is None or not (listen or state_dir):
        return None
    command = f"slowtok explain {slowest.record['id']}"
    if state_dir:
        return f"{command} --state-dir {state_dir}"
    return command if listen == USUAL_LISTEN else f"{command} --listen {listen}"


async def _stay(stage: DemoStage) -> None:
    """Stay until Ctrl-C, which is the normal end here.

    Raises:
        DemoError: the engine or the proxy is gone, and with it the demo.
    """
    with suppress(asyncio.CancelledError):
        raise DemoError(f"{await stage.until_one_ends()}: the demo ends")


def _end_on_signals() -> None:
    """Make SIGTERM and a closed terminal end the demo as Ctrl-C does, with its children."""
    task = asyncio.current_task()
    if task is None or sys.platform == "win32":
        return
    for ending in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(ending, task.cancel)
