"""`slowtok fit`: does a model fit, how fast will it be, is a claimed rate possible."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import orjson
import psutil
from rich.console import Console

from slowtok.config.settings import Settings
from slowtok.detectors.case.machine import DeviceFacts
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.fit.asked import AskError, FitOptions, check_positive, question
from slowtok.proxy.cli.fit.batch import MAX_LINE_BYTES, answers
from slowtok.proxy.cli.fit.comparison import others, side_by_side, side_by_side_json
from slowtok.proxy.cli.fit.layout import page
from slowtok.proxy.cli.fit.outlook import outlook, outlook_json
from slowtok.proxy.cli.render.json_text import json_text
from slowtok.proxy.cli.running import running_at, with_state_of
from slowtok.proxy.inspection.look import NOT_LOOKED, POLL_S, READY_S
from slowtok.proxy.sampling.host.ram import kept_bytes_per_s
from slowtok.proxy.sampling.supervisor import Sampler

DONE, FAILED, USAGE = 0, 1, 2


def run_fit(
    settings: Settings, asked: FitOptions, claimed_tps: float | None, compared: list[str]
) -> int:
    """Answer one question and print it, or the same of several machines side by side.

    Returns 2 where it cannot be used, with one line why.
    """
    if compared and claimed_tps is not None:
        return complain("--claim: judges one machine, so leave out --compare", USAGE)
    try:
        if claimed_tps is not None:
            check_positive("claim", claimed_tps)
        rest = [question(other, None) for other in others(asked, compared)]
        first = outlook(question(asked, _present(settings, asked)), claimed_tps)
        answers = [first, *(outlook(other, None) for other in rest)]
    except (AskError, ValueError) as reason:
        return complain(str(reason), USAGE)
    if settings.json_lines:
        told = side_by_side_json(answers) if compared else outlook_json(first)
        sys.stdout.write(json_text(told) + "\n")
    else:
        Console(highlight=False).print(side_by_side(answers) if compared else page(first))
    return DONE


def run_batch() -> int:
    """Answer each line of standard input at once. Returns 1 where one could not be read."""
    failed = False
    for answer in answers(bounded_lines(sys.stdin.buffer)):
        failed |= "error" in answer
        sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
        sys.stdout.buffer.flush()
    return FAILED if failed else DONE


def bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a stream; of one that is too long only the beginning."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        rest = line
        while not rest.endswith(b"\n") and (rest := stream.readline(MAX_LINE_BYTES)):
            pass
        yield line


def _present(settings: Settings, asked: FitOptions) -> DeviceFacts | None:
    """Look at this machine where no other was named."""
    if asked.gpu:
        return None
    found = running_at(settings)  # it may have measured the RAM
    device = asyncio.run(look_at_machine(with_state_of(settings, found).state_path))
    if device.ram_bandwidth_bytes_per_s is not None or found is None:
        return device
    return replace(
        device,
        ram_bandwidth_bytes_per_s=found.ram_bytes_per_s,
        ram_bandwidth_source=found.ram_source,
    )


async def look_at_machine(state_path: Path) -> DeviceFacts:
    """Look at this machine once through the sampling process; without GPUs where none was seen.

    Nothing runs on a GPU, and the bandwidth of RAM is only read where `slowtok serve` has kept it.
    """
    sampler = Sampler()
    try:
        await sampler.start()
        sampler.set_active(True)
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                while sampler.status()["gpu_unavailable"] == NOT_LOOKED:  # noqa: ASYNC110 - as in doctor
                    await asyncio.sleep(POLL_S)
        device = sampler.device()
    finally:
        await sampler.stop()
    kept = kept_bytes_per_s(state_path)
    return replace(
        device,
        ram_bandwidth_bytes_per_s=kept,
        ram_bandwidth_source="measured" if kept else None,
        ram_bytes=device.ram_bytes or psutil.virtual_memory().total,
    )
