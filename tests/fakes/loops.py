"""The event loop that tests run on."""

import asyncio
import sys
from collections.abc import Callable, Mapping


def as_served() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on uvloop, as `slowtok serve` does; on Windows there is none."""
    if sys.platform == "win32":
        return {"asyncio": asyncio.new_event_loop}
    import uvloop  # noqa: PLC0415 - not on Windows

    return {"uvloop": uvloop.new_event_loop}
