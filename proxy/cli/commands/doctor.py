"""`slowtok doctor`: one look without traffic, as tables or as one JSON object."""

import asyncio
import sys

from rich.console import Console

from slowtok.config.settings import Settings
from slowtok.proxy.cli.render.console import json_text
from slowtok.proxy.cli.render.doctor import page
from slowtok.proxy.cli.running_proxy import Running, running_at, say_whose, with_state_of
from slowtok.proxy.inspection.examine import as_json, examine
from slowtok.proxy.inspection.look import take_look

DONE, NOTHING_INSPECTED = 0, 3


def run_doctor(settings: Settings) -> int:
    """Look once and print what was found. Returns the exit code: 3 without engine and GPU.

    Where no engine is named, those of the slowtok that runs are meant, else the usual ports.
    """
    found = running_at(settings)
    if not settings.upstream:
        settings = _with_engines(settings, found)
    waiting = Console(stderr=True, highlight=False)
    with waiting.status("starting") as status:
        told = found.ram_bytes_per_s if found else None
        if told and found and found.ram_source == "given" and not settings.ram_bandwidth:
            settings = settings.model_copy(update={"ram_bandwidth": told / 1e9})
        seen = asyncio.run(take_look(settings, status.update, told))
    checks = examine(seen)
    if settings.json_lines:
        sys.stdout.write(json_text(as_json(seen, checks)) + "\n")
    else:
        Console(highlight=False).print(page(checks, is_anything=seen.is_anything))
    return DONE if seen.is_anything else NOTHING_INSPECTED


def _with_engines(settings: Settings, found: Running | None) -> Settings:
    if found is None:
        return settings
    if found.upstream:
        say_whose("engines", ", ".join(found.upstream), found)
        settings = settings.model_copy(update={"upstream": found.upstream})
    return with_state_of(settings, found)
