"""`slowtok status`: what the running proxy sees, and what it costs."""

import sys

from rich.console import Console

from slowtok.config.settings import Settings
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.render.console import json_text
from slowtok.proxy.cli.render.overview import overview
from slowtok.proxy.cli.running_proxy import NotThere, not_slowtok, read_page


def run_status(settings: Settings) -> int:
    """Print the status of the proxy at `listen`. Returns 1 where there is none."""
    try:
        status = read_page(settings, "status")
        if not isinstance(status, dict) or "engines" not in status:
            raise NotThere(not_slowtok(settings))
    except NotThere as reason:
        return complain(str(reason), 1)
    if settings.json_lines:
        sys.stdout.write(json_text(status) + "\n")
    else:
        Console(highlight=False).print(overview(status))
    return 0
