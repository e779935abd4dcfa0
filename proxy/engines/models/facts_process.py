"""A reader of model files as a process of its own: its facts on standard output, as JSON."""

import sys
from collections.abc import Callable
from pathlib import Path

import orjson

from slowtok.detectors.case.engine import ModelFacts


def print_facts(argv: list[str], read: Callable[[Path], ModelFacts], usage: str) -> int:
    """Print what `read` says of the one path in `argv`. Returns the exit code."""
    if len(argv) != 1:
        sys.stderr.write(f"usage: python -m slowtok.proxy.engines.models.{usage}\n")
        return 2
    try:
        facts = read(Path(argv[0]))
    except Exception as error:  # noqa: BLE001  a foreign file can raise anything; one line will do
        sys.stderr.write(f"{argv[0]}: {type(error).__name__}: {error}\n")
        return 1
    sys.stdout.buffer.write(orjson.dumps(facts) + b"\n")
    return 0
