"""The engine on the GPU, a real `slowtok serve --record` before it, and requests through both."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fakes.engine import RunningEngine, real_engine
from fakes.running import RunningProxy, chat, running_proxy
from gpu_check import hold_memory
from gpu_check.readings import Gpu
from gpu_check.verdict import causes, judge

CHAT = "/v1/chat/completions"
WARM_UP_TOKENS = 32
SHORTER = 4
"""A request that is to be slowed is so much shorter: it may take many times as long."""

RECORD_S = 5.0
POLL_S = 0.05
CONNECT_S, READ_S = 10.0, 60.0


class Skip(Exception):
    """A step cannot be done here; the text says why."""


@dataclass(kw_only=True)
class Check:
    """One check: what it was given, what is up, and what is known so far."""

    gpu: Gpu
    folder: Path
    program: Sequence[str]
    model: Path | None
    """None where PyTorch's load stands in for an engine."""
    seconds: float
    context_tokens: int
    gpu_layers: int | None
    stack: contextlib.ExitStack
    """Of what stays up from one step to the next."""
    engine: RunningEngine | None = None
    proxy: RunningProxy | None = None
    tokens_per_char: float = 0.25
    decode_tps: float | None = None
    power_w: list[float] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """What the newest engine said."""
        return self.folder / "engine.log"

    @property
    def tokens(self) -> int:
        """How long an answer takes `seconds` when nothing is wrong, as far as it has room."""
        return max(16, min(int((self.decode_tps or 0.0) * self.seconds), self.context_tokens // 4))

    @property
    def main(self) -> RunningProxy:
        """The proxy that stays up."""
        if self.proxy is None:
            raise Skip("the engine did not start")
        return self.proxy

    def start(self) -> None:
        """Start the engine and the proxy that stay up."""
        self.engine, self.proxy = self.stack.enter_context(self.serving(self.gpu_layers))

    def stop(self) -> None:
        """End them."""
        self.engine = self.proxy = None
        self.stack.close()

    @contextlib.contextmanager
    def serving(self, gpu_layers: int | None) -> Iterator[tuple[RunningEngine, RunningProxy]]:
        """Run an engine with a proxy before it; all proxies share what was learned."""
        options = ("--record", str(self.folder / "cases"))
        with (
            self.running(gpu_layers) as engine,
            running_proxy(self.folder / "state", engine.url, options=options) as proxy,
        ):
            yield engine, proxy

    @contextlib.contextmanager
    def running(self, gpu_layers: int | None) -> Iterator[RunningEngine]:
        """Run an engine; what it says goes into `log`."""
        with (
            self.log.open("wb") as log,
            real_engine(
                program=self.program,
                model=self.model or Path("none"),
                slots=1,
                context=self.context_tokens,
                threads=None,
                gpu_layers=gpu_layers,
                errors=log,
            ) as engine,
        ):
            yield engine

    def text(self, tokens: int, about: str) -> str:
        """Return a prompt of about so many tokens, which has no beginning in common with others."""
        text, number = f"About {about}.", 0
        while len(text) * self.tokens_per_char < tokens:
            number += 1
            text += f" Line {number}: the {about} was calm."
        return text

    def ask(
        self, proxy: RunningProxy, about: str, *, planted: Sequence[str] = (), **size: int
    ) -> dict[str, Any]:
        """Send one request, and return what was said of it beside what was planted."""
        tokens = max(self.tokens // SHORTER, 16) if planted else self.tokens
        text = self.text(size.get("prompt", 32), about)
        body = chat(text, tokens=size.get("tokens", tokens), stream=True)
        record = proxy.ask(body).record
        rate = record.get("rate", {})
        return {
            "planted": list(planted),
            "judged": judge(planted, record, self.decode_tps),
            "verdict": record["verdict"],
            "phase": record.get("phase"),
            "causes": causes(record),
            "prefill_tps": rate.get("prefill_tps"),
            "decode_tps": rate.get("decode_tps"),
            "case": self._case(record["id"]),
        }

    def _case(self, request_id: str) -> Any:
        """Return a request's case file, which is written behind its back."""
        path, end_s = self.folder / "cases" / f"{request_id}.json", time.monotonic() + RECORD_S
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError, ValueError):  # not there yet, or half of it
                return json.loads(path.read_bytes())
            time.sleep(POLL_S)
        return None

    @contextlib.contextmanager
    def memory_held(self, leave_bytes: int) -> Iterator[None]:
        """Let another process hold all memory of the GPU but so much."""
        command = [sys.executable, hold_memory.__file__, str(leave_bytes)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as holder:
            try:
                assert holder.stdout is not None
                assert holder.stderr is not None
                if not holder.stdout.readline():
                    raise Skip(f"no memory could be held: {holder.stderr.read().strip()}")
                yield
            finally:
                holder.kill()


@contextlib.contextmanager
def decoding(url: str, *, tokens: int) -> Iterator[None]:
    """Let another client read one answer after the other until the block ends."""
    begun, over = threading.Event(), threading.Event()

    def read() -> None:
        body = chat("Tell me of the sea.", tokens=tokens, stream=True)
        with contextlib.suppress(httpx.HTTPError):  # the engine may end before
            while not over.is_set():
                with httpx.stream("POST", url + CHAT, json=body, timeout=READ_S) as reply:
                    for _ in reply.iter_raw():
                        begun.set()
                        if over.is_set():
                            return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        if not begun.wait(READ_S):
            raise Skip("the other client got no answer")
        yield
    finally:
        over.set()
        thread.join(READ_S)
