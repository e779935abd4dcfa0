"""The command line, and nothing else: arguments to settings, settings to a command.

Exit codes: 0 done, 1 failed, 2 usage, 3 nothing could be inspected.
"""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from slowtok.proxy.cli.commands.fit import fit
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.options import (
    ApiKey,
    Cause,
    Config,
    Json,
    Listen,
    LogFile,
    LogToRead,
    Model,
    NoKey,
    RamBandwidth,
    RamBandwidthOfCases,
    Record,
    Run,
    StateDir,
    Upstream,
    end_with,
    settings_from,
)


class ServesByDefault(TyperGroup):
    """The commands, of which `serve` is meant where none is named; the Tab key knows it, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `serve` before options that are not slowtok's own, and where there is nothing."""
        own = {name for option in self.get_params(ctx) for name in option.opts}
        first = args[0] if args else ""
        nothing = not args and not ctx.resilient_parsing  # Tab: the command may be yet to come
        if nothing or (first.startswith("-") and first.partition("=")[0] not in own):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return what begins so, options of `serve` among it, for its name may be left out."""
        own = super().shell_complete(ctx, incomplete)
        names = {item.value for item in own}
        serve = self.commands["serve"].shell_complete(ctx, incomplete)
        return [*own, *(item for item in serve if item.value not in names)]


app = typer.Typer(
    name="slowtok",
    cls=ServesByDefault,
    help="Why was this request slow? A local proxy for llama-server, vLLM and Ollama.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Find out why a request to a local language model was slow."""
    if version:
        from importlib.metadata import version as version_of  # noqa: PLC0415 - only needed here

        typer.echo(f"slowtok {version_of('slowtok')}")
        raise typer.Exit


@app.command()
def serve(
    upstream: Upstream = None,
    listen: Listen = None,
    config: Config = None,
    log: LogFile = None,
    state_dir: StateDir = None,
    record: Record = None,
    ram_bandwidth: RamBandwidth = None,
    api_key: ApiKey = None,
    allow_no_key: NoKey = False,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="How many processes relay requests [1].")
    ] = None,
    json: Json = False,
) -> None:
    """Relay requests to the engines and diagnose each one (the default command)."""
    # Meant for another program: prometheus_client would count slowtok's requests in its files.
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    from slowtok.proxy.cli.commands.serve import run_serve  # noqa: PLC0415 - keeps other commands quick

    given = {
        "upstream": upstream or None,
        "listen": listen,
        "log": log,
        "state_dir": state_dir,
        "record": record,
        "ram_bandwidth": ram_bandwidth,
        "api_key": api_key,
        "allow_no_key": allow_no_key or None,
        "workers": workers,
        "json": json or None,
    }
    settings = settings_from(given, config)
    end_with(lambda: run_serve(settings))


@app.command()
def demo(
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your GGUF file, not the small model.")
    ] = None,
    stay: Annotated[bool, typer.Option("--serve", help="Keep engine and proxy running.")] = False,
    listen: Listen = None,
    state_dir: StateDir = None,
    ram_bandwidth: RamBandwidth = None,
    json: Json = False,
) -> None:
    """Show a real engine with a small model, real slowdowns, and the diagnosis of each one."""
    from slowtok.proxy.cli.demo.scenario import run_demo  # noqa: PLC0415 - as above

    given = {"listen": listen, "state_dir": state_dir, "ram_bandwidth": ram_bandwidth}
    settings_from(given, None)  # a bad one is told before it begins
    raise typer.Exit(
        run_demo(
            model=model,
            serve=stay,
            listen=listen,
            state_dir=Path(state_dir) if state_dir else None,
            ram_bandwidth=ram_bandwidth,
            json=json,
        )
    )


@app.command()
def status(listen: Listen = None, config: Config = None, json: Json = False) -> None:
    """Show what the running proxy sees, and what it costs."""
    from slowtok.proxy.cli.commands.status import run_status  # noqa: PLC0415 - as above

    settings = settings_from({"listen": listen, "json": json or None}, config)
    raise typer.Exit(run_status(settings))


@app.command()
def tail(
    listen: Listen = None,
    log: LogToRead = None,
    state_dir: StateDir = None,
    config: Config = None,
    lines: Annotated[
        int,
        typer.Option("-n", "--lines", metavar="N", min=0, help="Begin with the last N requests."),
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Wait for new requests.")
    ] = True,
    slow: Annotated[
        bool, typer.Option("--slow", help="Only slow requests, and failed ones.")
    ] = False,
    run: Run = None,
    model: Model = None,
    cause: Cause = None,
    json: Json = False,
) -> None:
    """Follow the log: one readable line per request."""
    from slowtok.proxy.cli.commands.tail import run_tail  # noqa: PLC0415 - as above
    from slowtok.proxy.cli.report.choice import Choice  # noqa: PLC0415 - as above

    settings = settings_from(_reading(listen, log, state_dir, json=json), config)
    choice = Choice(run=run, model=model, cause=cause, slow=slow)
    end_with(lambda: run_tail(settings, choice, last=lines, follow=follow))


@app.command()
def explain(
    request_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="A request's slowtok-id; default: the newest."),
    ] = None,
    listen: Listen = None,
    log: LogToRead = None,
    state_dir: StateDir = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Explain one request in full: where the time went, evidence, what was ruled out, remedy."""
    from slowtok.proxy.cli.commands.explain import run_explain  # noqa: PLC0415 - as above

    settings = settings_from(_reading(listen, log, state_dir, json=json), config)
    raise typer.Exit(run_explain(settings, request_id))


@app.command()
def runs(
    listen: Listen = None,
    log: LogToRead = None,
    state_dir: StateDir = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List agent runs, the newest first: how long each took, what it lost, what to fix first."""
    from slowtok.proxy.cli.commands.runs import run_runs  # noqa: PLC0415 - as above

    settings = settings_from(_reading(listen, log, state_dir, json=json), config)
    end_with(lambda: run_runs(settings))


@app.command()
def run(
    run_id: Annotated[
        str, typer.Argument(metavar="ID|last", help="A run's ID, a part of it, or its name.")
    ] = "last",
    listen: Listen = None,
    log: LogToRead = None,
    state_dir: StateDir = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Explain one agent run: where its wall time went, what was lost, what to fix first."""
    from slowtok.proxy.cli.commands.runs import run_run  # noqa: PLC0415 - as above

    settings = settings_from(_reading(listen, log, state_dir, json=json), config)
    end_with(lambda: run_run(settings, run_id))


@app.command()
def report(
    since: Annotated[
        str, typer.Option(metavar="1d|7d|TIME", help="Since when: a length, or a time in ISO 8601.")
    ] = "1d",
    until: Annotated[
        str | None, typer.Option(metavar="1d|TIME", help="Until when; default: now.")
    ] = None,
    run: Run = None,
    model: Model = None,
    cause: Cause = None,
    form: Annotated[
        Literal["text", "json", "html"], typer.Option("--format", help="html is one complete file.")
    ] = "text",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report into this file.")
    ] = None,
    listen: Listen = None,
    log: LogToRead = None,
    state_dir: StateDir = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Sum up a period of the log: time spent and lost, by cause, model and run; what to fix."""
    from slowtok.proxy.cli.commands.report import run_report  # noqa: PLC0415 - as above
    from slowtok.proxy.cli.report.choice import Choice  # noqa: PLC0415 - as above

    settings = settings_from(_reading(listen, log, state_dir, json=json), config)
    choice = Choice(run=run, model=model, cause=cause)
    end_with(lambda: run_report(settings, since, form, output, until=until, choice=choice))


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Show one frame and end.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="S", min=0.2, max=3600, help="Time between two updates.")
    ] = 1.0,
    listen: Listen = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Watch the requests that run now: phase, rate and expected rate, GPUs; q ends it."""
    from slowtok.proxy.cli.commands.top import run_top  # noqa: PLC0415 - as above

    settings = settings_from({"listen": listen, "json": json or None}, config)
    raise typer.Exit(run_top(settings, once=once, interval_s=interval))


@app.command()
def doctor(
    upstream: Upstream = None,
    listen: Listen = None,
    config: Config = None,
    state_dir: StateDir = None,
    ram_bandwidth: RamBandwidth = None,
    json: Json = False,
) -> None:
    """Inspect engines, memory, GPUs, flags and host, without traffic: what costs speed?"""
    from slowtok.proxy.cli.commands.doctor import run_doctor  # noqa: PLC0415 - as above

    given = {
        "upstream": upstream or None,
        "listen": listen,
        "state_dir": state_dir,
        "ram_bandwidth": ram_bandwidth,
        "json": json or None,
    }
    settings = settings_from(given, config)
    end_with(lambda: run_doctor(settings))


@app.command()
def service(
    action: Annotated[
        Literal["install", "remove", "status"], typer.Argument(help="What to do with the service.")
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPTION",
            help="Options of `slowtok serve`, after two dashes: -- --listen HOST:PORT.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be written and run.")
    ] = False,
) -> None:
    """Keep slowtok running as your service, with systemd, launchd or the Task Scheduler."""
    from slowtok.proxy.cli.commands.service import run_service  # noqa: PLC0415 - as above

    serving = _command_line().commands["serve"].make_context("serve", list(options or ()))
    given = {name: value or None for name, value in serving.params.items()}
    named = {name: value for name, value in given.items() if name != "config"}
    settings = settings_from(named, given["config"], environ={})  # a service has not this one
    end_with(lambda: run_service(action, options or (), given, settings, dry_run))


app.command()(fit)


@app.command()
def bench(
    upstream: Upstream = None,
    listen: Listen = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model, if there are several.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=32, max=100_000, help="Length of each answer [512]."),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=100, help="How many runs [3].")
    ] = None,
    prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your own prompt, not the standard one.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result to a file.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with an earlier result.")
    ] = None,
    state_dir: StateDir = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Measure prefill and decode, say what to try next, and whether it helped."""
    from slowtok.proxy.cli.commands.bench import BenchOptions, run_bench  # noqa: PLC0415 - as above

    given = {
        "upstream": upstream or None,
        "listen": listen,
        "state_dir": state_dir,
        "json": json or None,
    }
    asked = BenchOptions(
        model=model, tokens=tokens, runs=runs, prompt=prompt, save=save, compare=compare
    )
    raise typer.Exit(run_bench(settings_from(given, config), asked))


@app.command()
def replay(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Case files, or directories of them; - means standard input."
        ),
    ],
    expect_again: Annotated[
        bool, typer.Option("--expect-again", help="Also compute the expected rates again.")
    ] = False,
    ram_bandwidth: RamBandwidthOfCases = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Diagnose recorded cases again, and show what changed."""
    from slowtok.proxy.cli.commands.replay import run_replay  # noqa: PLC0415 - as above

    given = {"ram_bandwidth": ram_bandwidth, "json": json or None}
    settings = settings_from(given, config)
    ram_bytes_per_s = settings.ram_bytes_per_s if ram_bandwidth is not None else None
    raise typer.Exit(
        run_replay(settings, files, expect_again=expect_again, ram_bytes_per_s=ram_bytes_per_s)
    )


@app.command()
def mcp(
    listen: Listen = None,
    log: LogToRead = None,
    state_dir: StateDir = None,
    config: Config = None,
) -> None:
    """Tell agents why their requests and runs were slow: an MCP server on standard input."""
    try:
        from slowtok.proxy.cli.commands.mcp import run_mcp  # noqa: PLC0415 - as above
    except ImportError:
        said = "mcp needs packages that are not installed: pip install 'slowtok[mcp]'"
        raise typer.Exit(complain(said, 1)) from None

    settings_from(_reading(listen, log, state_dir, json=False), config)
    options = {"--listen": listen, "--log": log, "--state-dir": state_dir, "--config": config}
    raise typer.Exit(run_mcp(options))


def _reading(
    listen: str | None, log: str | None, state_dir: str | None, *, json: bool
) -> dict[str, Any]:
    """Return the settings of a command that reads what a slowtok has written."""
    return {"listen": listen, "log": log, "state_dir": state_dir, "json": json or None}


def main() -> None:
    """Run the command line; without a command it serves."""
    _open_standard_streams()
    try:
        try:
            # By that name also as `python -m slowtok.proxy`: completion is for `slowtok`.
            _command_line()(args=sys.argv[1:], prog_name="slowtok")
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
        sys.exit(complain(f"standard output: {error.strerror}", 1))


def _open_standard_streams() -> None:
    """Open the standard streams that the process was started without (`>&-`, pythonw.exe).

    Otherwise the next connection would take the number of one, and what is printed would go there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - to its end


STANDARD_ERROR = 2
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a full or broken disk says; a reader that has seen enough (EPIPE) ends a command quietly."""

COMPLETION = {
    "install_completion": "Complete with Tab in this shell.",
    "show_completion": "Print what that installs.",
}
"""Typer's two options, in the words of this help."""


def _command_line() -> Any:
    """Return the command line; beside a flag its help names no value, for it takes none."""
    whole: Any = typer.main.get_command(app)
    for command in (whole, *whole.commands.values()):
        for option in command.get_params(whole.context_class(command, **whole.context_settings)):
            if getattr(option, "is_flag", False):
                option.metavar = ""
                option.help = COMPLETION.get(option.name, option.help)
    return whole


if __name__ == "__main__":
    main()
