"""`slowtok service`: let the system keep slowtok running, for the user who asks for it."""

import getpass
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from slowtok.config.settings import Settings
from slowtok.proxy.cli.commands.serve import check_settings
from slowtok.proxy.cli.commands.service_files import (
    Command,
    ServiceFile,
    launchd_agent,
    scheduled_task,
    systemd_unit,
)
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.running_proxy import holder_of, own_address

DONE, FAILED, USAGE, NOT_INSTALLED = 0, 1, 2, 3

Action = Literal["install", "remove", "status"]


class CommandFailedError(Exception):
    """A command of the system did not work; the text says which one, and what it said."""


def run_service(
    action: Action, options: Sequence[str], given: Mapping[str, Any], settings: Settings, dry: bool
) -> int:
    """Install, remove or show the service. Returns the exit code: 3 where none is installed.

    `options` are those of `slowtok serve`, `given` the same by name, and `settings` what comes of
    them. `dry` only prints what would be written and run.

    Raises:
        SettingsError: `slowtok serve` would refuse these settings.
    """
    service = service_of(sys.platform, options)
    if unusable := why_not_as_service(given):
        return complain(unusable, USAGE)
    if action == "install":
        check_settings(settings)
    if dry:
        sys.stdout.write(plan(service, action))
        return DONE
    if action != "install" and not service.path.exists():
        said = (
            f"no service is installed ({service.path} is not there); install one with "
            "`slowtok service install`"
        )
        return complain(said, NOT_INSTALLED)
    try:
        return _carry_out(action, service, settings)
    except CommandFailedError as reason:
        return complain(str(reason), FAILED)
    except OSError as error:
        return complain(f"{service.path} cannot be written: {error.strerror}", FAILED)


def _carry_out(action: Action, service: ServiceFile, settings: Settings) -> int:
    if service.reachable is not None:
        _reach(service.reachable, service.unreachable)
    if action == "install":
        return _install(service, settings)
    if action == "remove":
        return _remove(service)
    return DONE if _shown(service) else FAILED


def service_of(platform: str, options: Sequence[str]) -> ServiceFile:
    """Return this user's service on a platform, by the name that `sys.platform` has for it."""
    # -P: a service starts in the home folder, whose random.py must not be ours.
    serve = ("-P", "-m", "slowtok.proxy", "serve", *options)
    if platform == "win32":
        windowless = str(Path(sys.executable).with_name("pythonw.exe"))
        app_data = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        domain, user = os.environ.get("USERDOMAIN"), getpass.getuser()
        whole = f"{domain}\\{user}" if domain else user
        return scheduled_task((windowless, *serve), Path(app_data), whole)
    run = (sys.executable, *serve)
    if platform == "darwin":
        return launchd_agent(run, Path.home(), os.getuid())
    config_home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return systemd_unit(run, Path(config_home))


def why_not_as_service(given: Mapping[str, Any]) -> str | None:
    """Return which option of `slowtok serve` no service can have, and what to do; else None."""
    if given.get("api_key"):
        return (
            "--api-key: others could read the key in the service's file and in the list of "
            "processes; put api_key into a settings file that only you can read, and name that: "
            "slowtok service install -- --config FILE"
        )
    for name in ("config", "log", "state_dir", "record"):
        path = given.get(name)
        if path and path != "-" and not Path(path).expanduser().is_absolute():
            option = f"--{name.replace('_', '-')}"
            return (
                f"{option} {path}: a service starts in another directory; give the whole path, "
                f"{Path(path).absolute()}"
            )
    return None


def plan(service: ServiceFile, action: Action) -> str:
    """Return what would be written and run, as one reads it."""
    run = {"install": service.start, "remove": service.stop, "status": service.show}[action]
    lines = [shlex.join(command) for command in run]
    if action == "install":
        lines = [f"# {service.path}", service.text, *lines]
    if action == "remove":
        lines += [f"# {service.path} is removed", *map(shlex.join, service.forget)]
    return "\n".join(lines) + "\n"


def _install(service: ServiceFile, settings: Settings) -> int:
    before = service.path.read_bytes() if service.path.exists() else None
    if before is not None:  # other options may be given now
        _tried(service.stop)
    elif holder := holder_of(settings.port):
        said = f"{settings.listen} is taken by {holder}; end it first, or name another port with"
        return complain(f"{said} `slowtok service install -- --listen HOST:PORT`", FAILED)
    service.path.parent.mkdir(parents=True, exist_ok=True)
    service.path.write_text(service.text, encoding=service.encoding)
    try:
        for command in service.start:
            _run(command)
    except CommandFailedError:
        _shown(service)  # what slowtok said; the manager tells only while it has the file
        _remove(service)
        if before is not None:
            service.path.write_bytes(before)
            _tried(service.start)
            sys.stdout.write("the service that was there before is there again\n")
        raise
    sys.stdout.write(f"slowtok is a service now: {service.path}\n")
    sys.stdout.write(f"it runs {service.lives}\n")
    sys.stdout.write(f"its page: http://{own_address(settings)}/slowtok/\n")
    for name in sorted(name for name in os.environ if name.startswith("SLOWTOK_")):
        complain(
            f"{name} is set in this shell, and the service does not get it: give the option after "
            "--, or put the setting into a file and name that with --config",
            DONE,
        )
    return DONE


def _remove(service: ServiceFile) -> int:
    """Take it away even where it cannot be stopped: it may have been stopped before."""
    refused = _tried(service.stop)
    service.path.unlink(missing_ok=True)
    refused += _tried(service.forget)
    for said in refused:
        complain(said, DONE)
    sys.stdout.write(f"removed: {service.path}\n")
    return DONE


def _tried(commands: Sequence[Command]) -> list[str]:
    """Run each one, and return what those said that did not work."""
    refused = []
    for command in commands:
        try:
            _run(command)
        except CommandFailedError as reason:
            refused.append(str(reason))
    return refused


def _reach(command: Command, otherwise: str) -> None:
    try:
        _run(command)
    except CommandFailedError as reason:
        raise CommandFailedError(f"{reason}; {otherwise}") from None


def _run(command: Command) -> None:
    done = _finished(command, is_shown=False)
    if done.returncode != 0:
        said = " ".join((done.stderr.strip() or done.stdout.strip() or "it gave no reason").split())
        code = done.returncode
        raise CommandFailedError(f"`{shlex.join(command)}` ended with {code}: {said}")


def _shown(service: ServiceFile) -> bool:
    """Let the manager show the service to the user, and say whether it is up."""
    codes = [_finished(command, is_shown=True).returncode for command in service.show]
    return codes[0] == 0


def _finished(command: Command, *, is_shown: bool) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it writes goes to the user, or into what is returned."""
    try:
        return subprocess.run(  # noqa: S603 - our own words
            command, capture_output=not is_shown, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        raise CommandFailedError(f"the command {command[0]} is not there") from None
