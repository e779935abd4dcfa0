"""Options that several commands share, and the way from them to settings."""

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from slowtok.config.settings import Settings, SettingsError, describe, load

Upstream = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]URL", help="An engine's address; may be repeated."),
]
Listen = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The address where slowtok listens.")
]
Config = Annotated[str | None, typer.Option(metavar="FILE", help="A file with settings, in TOML.")]
LogFile = Annotated[
    str | None,
    typer.Option(
        "--log", metavar="FILE", help="Where the JSON log is written; - means standard output."
    ),
]
LogToRead = Annotated[
    str | None, typer.Option("--log", metavar="FILE", help="The JSON log that is read.")
]
StateDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where learned baselines and the log are kept.")
]
RamBandwidth = Annotated[
    str | None,
    typer.Option(
        metavar="GB/S",
        help="This machine's RAM bandwidth; default: what slowtok serve measured.",
    ),
]
RamBandwidthOfCases = Annotated[
    str | None,
    typer.Option(
        metavar="GB/S", help="RAM bandwidth of the recorded machine; default: the recorded one."
    ),
]
Record = Annotated[
    str | None, typer.Option(metavar="DIR", help="Write each request as a case file.")
]
ApiKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="The key that clients must send; SLOWTOK_API_KEY is safer."),
]
NoKey = Annotated[
    bool, typer.Option("--allow-no-key", help="Let other machines in without an API key.")
]
Run = Annotated[
    str | None,
    typer.Option("--run", metavar="ID", help="Only requests of this run: its ID or name."),
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="Only requests of this model.")]


def _causes() -> list[tuple[str, str]]:
    """Return every cause with its title, for the Tab key."""
    from slowtok.detectors.diagnosis.catalog import BY_CAUSE  # noqa: PLC0415 - all detectors

    return [(cause, detector.TITLE) for cause, detector in BY_CAUSE.items()]


def _known_cause(name: str | None) -> str | None:
    """Return the cause that was named, or end with exit code 2 where there is none such."""
    if name is None or name in (known := [cause for cause, _ in _causes()]):
        return name
    alike = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {alike[0]}?" if alike else "docs/causes.md lists them all"
    raise _usage_error(f"--cause {name}: no cause has this name; {hint}")


Cause = Annotated[
    str | None,
    typer.Option(
        metavar="CAUSE",
        help="Only requests slowed by this cause.",
        autocompletion=_causes,
        callback=_known_cause,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of readable text.")]


def settings_from(
    given: dict[str, Any], config: str | None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Load the settings, or end with one line on standard error and exit code 2."""
    named = {"arguments": config, "environment": environ.get("SLOWTOK_CONFIG")}
    source, name = next(((s, n) for s, n in named.items() if n), ("defaults", ""))
    environ = {k: v for k, v in environ.items() if k != "SLOWTOK_CONFIG"}
    try:
        text = Path(name).read_text("utf-8-sig") if name else ""
        return load(given, environ, text, name)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise _usage_error(describe("config", name, source, f"cannot be read: {reason}")) from None
    except SettingsError as error:
        raise _usage_error(str(error)) from None


def end_with(command: Callable[[], int]) -> None:
    """Run a command and end with its exit code; a setting that cannot be used ends with 2."""
    try:
        code = command()
    except SettingsError as error:
        raise _usage_error(str(error)) from None
    raise typer.Exit(code)


def _usage_error(said: str) -> typer.Exit:
    typer.echo(f"slowtok: {said}", err=True)
    return typer.Exit(2)
