"""The slowtok that a benchmark is sent to: the one that runs, or one of its own for the time."""

import asyncio
import contextlib
import difflib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from slowtok.config.settings import Settings
from slowtok.proxy.cli.demo.children import free_port, last_words, run_child
from slowtok.proxy.cli.demo.client import Client
from slowtok.proxy.cli.running_proxy import NotThere, own_address, read_page
from slowtok.proxy.runtime.state_dir import CLAIM_FILE, claimed

START_S = 10.0
ENGINE_S = 10.0
"""An engine that has not answered by now will not."""

RAM_S = 35.0
"""slowtok waits up to 30 s for idle cores to measure the RAM's bandwidth, once."""

POLL_S = 0.1
MAX_NAMES = 4
ALIKE_RATIO = 0.5  # of the letters; a suggestion may be wrong, heuristic
Status = Mapping[str, Any]
Tell = Callable[[str], None]


class BenchError(Exception):
    """The benchmark cannot go on. The text says why, in one line."""


class NoEngine(BenchError):
    """There is no engine to measure."""


class BenchModelError(BenchError):
    """It is not clear which model is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchStage:
    """A proxy with an engine behind it. `own` says that it was started for this benchmark."""

    url: str
    status: Status
    own: bool
    session: aiohttp.ClientSession

    def client(self, model: str) -> Client:
        """Return a client that asks for one model."""
        return Client(self.session, self.url, model)

    async def ask(self, path: str) -> dict[str, Any]:
        """Return one of the proxy's pages, or what the engines say there; empty without."""
        return await self.client("").ask(path) or {}


@asynccontextmanager
async def set_stage(settings: Settings, tell: Tell) -> AsyncIterator[BenchStage]:
    """Yield the running slowtok at `listen` if it has the engine, else one started for the time.

    Raises:
        NoEngine: no engine answers.
        BenchError: slowtok could not be started.
    """
    running = await asyncio.to_thread(_running, settings)
    if running is not None:
        async with _session(settings.api_key.get_secret_value()) as session:
            url = f"http://{own_address(settings)}"
            yield await _ready(
                BenchStage(url=url, status=running, own=False, session=session), tell
            )
        return
    with tempfile.TemporaryDirectory(prefix="slowtok-bench-") as scratch:
        log, listen = Path(scratch) / "proxy.log", f"127.0.0.1:{free_port()}"
        tell("starting slowtok for this measurement")
        with no_empty_traces(settings):
            async with (
                _own(settings, listen, log) as child,
                _session(os.environ.get("SLOWTOK_API_KEY", "")) as session,
            ):
                stage = BenchStage(url=f"http://{listen}", status={}, own=True, session=session)
                await _until_healthy(stage, child, log)
                yield await _ready(stage, tell)


@asynccontextmanager
async def _own(
    settings: Settings, listen: str, log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a slowtok; what it says is read, so that it never waits for a reader."""
    arguments = ("-m", "slowtok.proxy.cli.demo.leash", *_serve(settings, listen))
    async with run_child(*arguments, log=log) as child:
        swallow = asyncio.create_task(_swallow(child))
        try:
            yield child
        finally:
            swallow.cancel()
            await asyncio.gather(swallow, return_exceptions=True)


async def pick_model(stage: BenchStage, wanted: str | None) -> str:
    """Return the model to ask for: the one wanted, in memory, or the only one.

    Raises:
        BenchModelError: there are several, or none, or the one wanted is not among them.
    """
    listed = await stage.ask("/v1/models")
    names = [str(m["id"]) for m in listed.get("data") or [] if isinstance(m, dict) and m.get("id")]
    if wanted:
        return _listed(wanted, names)
    loaded = [
        name for e in stage.status.get("engines") or [] for name in e.get("loaded_models") or []
    ]
    for few in (names, [name for name in names if name in loaded]):
        if len(few) == 1:
            return few[0]
    if not names:
        raise BenchModelError("the engine lists no model: name one with --model")
    raise BenchModelError(
        f"several models are listed; name one with --model: {', '.join(sorted(names))}"
    )


def _listed(wanted: str, names: Sequence[str]) -> str:
    """Return the name if the engines list it, or list nothing; a tag may be left out (Ollama).

    Raises:
        BenchModelError: they list others only.
    """
    if not names or wanted in names or f"{wanted}:latest" in names:
        return wanted
    alike = difflib.get_close_matches(wanted, names, n=MAX_NAMES, cutoff=ALIKE_RATIO)
    holding = [name for name in names if wanted.casefold() in name.casefold()]
    meant = list(dict.fromkeys([*holding, *alike]))[:MAX_NAMES]
    said = f"did you mean {' or '.join(meant)}?" if meant else f"listed: {_some(names)}"
    raise BenchModelError(f"--model {wanted}: no engine lists it; {said}")


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(sorted(names)[:MAX_NAMES])}{more}"


def _running(settings: Settings) -> Status | None:
    """Return the status of the slowtok at `listen`; None without, or without the engines named."""
    try:
        status = read_page(settings, "status")
    except NotThere:
        return None
    if not isinstance(status, dict) or "engines" not in status:
        return None
    behind = {engine.get("url") for engine in status["engines"]}
    return status if {url for _, url in settings.upstreams()} <= behind else None


def _serve(settings: Settings, listen: str) -> list[str]:
    upstreams = [part for value in settings.upstream for part in ("--upstream", value)]
    state = ("--state-dir", str(settings.state_path))
    log = ("--log", settings.log) if settings.log not in ("", "-") else ()
    return ["serve", "--listen", listen, *upstreams, *state, *log]


def _session(key: str) -> aiohttp.ClientSession:
    headers = {"x-api-key": key} if key else {}
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), headers=headers)


async def _until_healthy(stage: BenchStage, child: asyncio.subprocess.Process, log: Path) -> None:
    limit_at_s = time.monotonic() + START_S
    while not await stage.ask("/slowtok/health"):
        if child.returncode is not None or time.monotonic() > limit_at_s:
            raise BenchError(f"slowtok did not start: {await last_words(child, log)}")
        await asyncio.sleep(POLL_S)


async def _ready(stage: BenchStage, tell: Tell) -> BenchStage:
    """Wait until an engine answers and slowtok knows what it needs to judge.

    Raises:
        NoEngine: none does.
    """
    began_s = time.monotonic()
    while True:
        status = await stage.ask("/slowtok/status")
        waited_s = time.monotonic() - began_s
        answers = any(engine.get("answers") for engine in status.get("engines") or [])
        if answers and (_can_judge(status) or not stage.own or waited_s > RAM_S):
            return BenchStage(url=stage.url, status=status, own=stage.own, session=stage.session)
        if not answers and waited_s > ENGINE_S:
            where = [str(e.get("url")) for e in status.get("engines") or []]
            looked = ", ".join(where) or status.get("looked_at") or "the usual ports"
            raise NoEngine(f"no engine answers ({looked}); --upstream URL names one")
        tell("measuring the RAM's bandwidth, once" if answers else "looking for engines")
        await asyncio.sleep(POLL_S)


def _can_judge(status: Status) -> bool:
    machine = status.get("machine") or {}
    return bool(status.get("gpus") or machine.get("ram_bandwidth_bytes_per_s"))


async def _swallow(child: asyncio.subprocess.Process) -> None:
    while child.stdout is not None and await child.stdout.read(1 << 16):
        pass


@contextlib.contextmanager
def no_empty_traces(settings: Settings) -> Iterator[None]:
    """Take an empty log away again, and a state directory with nothing else in it.

    What was there before the block stays, and so does what somebody else uses by now.
    """
    state, log = settings.state_path, settings.log_path
    had_state, had_log = state.exists(), log is None or log.exists()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if log is not None and not had_log and not log.stat().st_size:
                log.unlink()
        if not had_state:
            _take_away(state)


def _take_away(state: Path) -> None:
    with contextlib.suppress(OSError):
        if [one.name for one in state.iterdir()] != [CLAIM_FILE]:
            return
        with claimed(state, "nobody") as other:
            if other is None:
                (state / CLAIM_FILE).unlink()
                state.rmdir()
