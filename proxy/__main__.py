"""The command line, and nothing else: arguments to settings, settings to a command.

Exit codes: 0 done, 1 failed, 2 usage, 3 nothing could be inspected.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from slowtok.config.settings import Settings, SettingsError, describe, load

app = typer.Typer(
    name="slowtok",
    help="Why was this request slow? A local proxy for llama-server, vLLM and Ollama.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Upstream = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]URL", help="An inference server; may be given several times."),
]
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where clients connect.")]
Config = Annotated[str | None, typer.Option(metavar="FILE", help="Settings in TOML.")]
LogFile = Annotated[
    str | None, typer.Option("--log", metavar="FILE", help="The JSON log; - for standard output.")
]
StateDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where learned baselines and the log are kept.")
]
Record = Annotated[
    str | None, typer.Option(metavar="DIR", help="Write each request as a case file.")
]
ApiKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Answer only who shows it; rather set SLOWTOK_API_KEY."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON lines instead of readable ones.")]


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Say why a request to a local language model was slow."""
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
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Relay requests to the engines and diagnose each one (the default command)."""
    from slowtok.proxy.commands.serve import run_serve  # noqa: PLC0415 - keeps other commands quick

    given = {
        "upstream": upstream or None,
        "listen": listen,
        "log": log,
        "state_dir": state_dir,
        "record": record,
        "api_key": api_key,
        "json": json or None,
    }
    settings = _settings(given, config)
    _run(lambda: run_serve(settings))


@app.command()
def demo(
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Any GGUF file instead of the small model.")
    ] = None,
    stay: Annotated[bool, typer.Option("--serve", help="Keep engine and proxy up.")] = False,
    listen: Listen = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Show it all: a real engine, a real model, real slowdowns, each one diagnosed."""
    from slowtok.proxy.demo.scenario import run_demo  # noqa: PLC0415 - as above

    raise typer.Exit(
        run_demo(
            model=model,
            serve=stay,
            listen=listen,
            state_dir=Path(state_dir) if state_dir else None,
            json=json,
        )
    )


@app.command()
def tail(
    log: LogFile = None,
    state_dir: StateDir = None,
    config: Config = None,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Begin with the last N.")] = 10,
    follow: Annotated[bool, typer.Option(help="Wait for more.")] = True,
    json: Json = False,
) -> None:
    """Follow the log: one readable line a request."""
    from slowtok.proxy.commands.tail import run_tail  # noqa: PLC0415 - as above

    settings = _settings({"log": log, "state_dir": state_dir, "json": json or None}, config)
    _run(lambda: run_tail(settings, last=lines, follow=follow))


@app.command()
def explain(
    request_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A request's slowtok-id; the newest one.")
    ] = None,
    listen: Listen = None,
    log: LogFile = None,
    state_dir: StateDir = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Explain one request in full: where the time went, evidence, what was ruled out, remedy."""
    from slowtok.proxy.commands.explain import run_explain  # noqa: PLC0415 - as above

    given = {"listen": listen, "log": log, "state_dir": state_dir, "json": json or None}
    raise typer.Exit(run_explain(_settings(given, config), request_id))


@app.command()
def doctor(
    upstream: Upstream = None,
    listen: Listen = None,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Look once, without traffic: engines, memory, GPUs, flags, host, and what costs speed."""
    from slowtok.proxy.commands.doctor import run_doctor  # noqa: PLC0415 - as above

    given = {
        "upstream": upstream or None,
        "listen": listen,
        "state_dir": state_dir,
        "json": json or None,
    }
    settings = _settings(given, config)
    _run(lambda: run_doctor(settings))


@app.command()
def bench(
    upstream: Upstream = None,
    listen: Listen = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which model; else the only one.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", min=32, max=100_000, help="Of each answer [512].")
    ] = None,
    runs: Annotated[int | None, typer.Option(metavar="N", min=1, max=100, help="[3]")] = None,
    prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your own prompt in place of the standard.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the result there.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Better, same or worse than this result?")
    ] = None,
    state_dir: StateDir = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Measure prefill and decode, say what to try next, and whether it helped."""
    from slowtok.proxy.commands.bench import Asked, run_bench  # noqa: PLC0415 - as above

    given = {
        "upstream": upstream or None,
        "listen": listen,
        "state_dir": state_dir,
        "json": json or None,
    }
    asked = Asked(model=model, tokens=tokens, runs=runs, prompt=prompt, save=save, compare=compare)
    raise typer.Exit(run_bench(_settings(given, config), asked))


@app.command()
def report(
    since: Annotated[
        str, typer.Option(metavar="1d|7d|TIME", help="How far back: a length, or ISO 8601.")
    ] = "1d",
    form: Annotated[
        Literal["text", "json", "html"], typer.Option("--format", help="html is one whole file.")
    ] = "text",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there, for its owner only.")
    ] = None,
    log: LogFile = None,
    state_dir: StateDir = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Sum up a day or a week of the log: time lost by cause, and what to fix first."""
    from slowtok.proxy.commands.report import run_report  # noqa: PLC0415 - as above

    settings = _settings({"log": log, "state_dir": state_dir, "json": json or None}, config)
    _run(lambda: run_report(settings, since, form, output))


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="One frame, then end.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="S", min=0.2, max=3600, help="Between two looks.")
    ] = 1.0,
    listen: Listen = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Watch what runs now: phase, rate against what is expected, GPUs; q ends it."""
    from slowtok.proxy.commands.top import run_top  # noqa: PLC0415 - as above

    settings = _settings({"listen": listen, "json": json or None}, config)
    raise typer.Exit(run_top(settings, once=once, interval_s=interval))


@app.command()
def replay(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Case files, directories of them, - for stdin."),
    ],
    expect_again: Annotated[
        bool, typer.Option("--expect-again", help="Compute the expected rates anew, too.")
    ] = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Diagnose recorded cases again, and show what changed."""
    from slowtok.proxy.commands.replay import run_replay  # noqa: PLC0415 - as above

    settings = _settings({"json": json or None}, config)
    raise typer.Exit(run_replay(settings, files, expect_again=expect_again))


@app.command()
def status(listen: Listen = None, config: Config = None, json: Json = False) -> None:
    """Show what the running proxy sees, and what it costs."""
    from slowtok.proxy.commands.status import run_status  # noqa: PLC0415 - as above

    settings = _settings({"listen": listen, "json": json or None}, config)
    raise typer.Exit(run_status(settings))


@app.command()
def fit(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A GGUF file, a folder, or a published name."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Like 'RTX 5090'; cpu for none. Else the one present."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", help="How many of them.")] = None,
    vram: Annotated[float | None, typer.Option(metavar="GIB", help="Memory of one GPU.")] = None,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="GB/S", help="Peak bandwidth of its memory.")
    ] = None,
    ram_bandwidth: Annotated[
        float | None, typer.Option(metavar="GB/S", help="Bandwidth of the RAM.")
    ] = None,
    params: Annotated[float | None, typer.Option(metavar="B", help="Billions of weights.")] = None,
    active_params: Annotated[
        float | None, typer.Option(metavar="B", help="Of them, used for each token.")
    ] = None,
    quant: Annotated[str | None, typer.Option(metavar="TYPE", help="Like Q4_K_M.")] = None,
    weights: Annotated[
        float | None, typer.Option(metavar="GIB", help="Size of the weights.")
    ] = None,
    layers: Annotated[int | None, typer.Option(metavar="N")] = None,
    kv_heads: Annotated[int | None, typer.Option(metavar="N")] = None,
    head_dim: Annotated[int | None, typer.Option(metavar="N")] = None,
    experts: Annotated[int | None, typer.Option(metavar="N", help="Of each layer.")] = None,
    experts_used: Annotated[int | None, typer.Option(metavar="N", help="For each token.")] = None,
    context: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Room in the KV cache [4096].")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Tokens in it [half of the context].")
    ] = None,
    kv_type: Annotated[str | None, typer.Option(metavar="TYPE", help="f16, q8_0, ...")] = None,
    gpu_layers: Annotated[
        int | None, typer.Option(metavar="N", help="Layers on GPUs; else as many as fit.")
    ] = None,
    cpu_moe_layers: Annotated[
        int | None, typer.Option(metavar="N", help="Layers whose experts stay in RAM.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="llama.cpp, vllm, ollama, ...")
    ] = None,
    claim: Annotated[
        float | None, typer.Option(metavar="RATE", help="Is this decode rate possible?")
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Setups as JSON lines on standard input.")
    ] = False,
    state_dir: StateDir = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Before a run: does the model fit, what rate to expect, is a claimed rate possible."""
    from slowtok.proxy.commands.fit import run_batch, run_fit  # noqa: PLC0415 - as above
    from slowtok.proxy.outlook.asked import Asked  # noqa: PLC0415 - as above

    if batch:
        raise typer.Exit(run_batch())
    asked = Asked(
        model=model, gpu=gpu, gpus=gpus, vram=vram, bandwidth=bandwidth,
        ram_bandwidth=ram_bandwidth, params=params, active_params=active_params, quant=quant,
        weights=weights, layers=layers, kv_heads=kv_heads, head_dim=head_dim, experts=experts,
        experts_used=experts_used, context=context, depth=depth, kv_type=kv_type,
        gpu_layers=gpu_layers, cpu_moe_layers=cpu_moe_layers, engine=engine,
    )  # fmt: skip
    settings = _settings({"state_dir": state_dir, "json": json or None}, config)
    raise typer.Exit(run_fit(settings, asked, claim))


def _settings(given: dict[str, Any], config: str | None) -> Settings:
    """Load the settings, or end with one line on standard error and exit code 2."""
    named = {"arguments": config, "environment": os.environ.get("SLOWTOK_CONFIG")}
    source, name = next(((s, n) for s, n in named.items() if n), ("defaults", ""))
    environ = {k: v for k, v in os.environ.items() if k != "SLOWTOK_CONFIG"}
    try:
        text = Path(name).read_text("utf-8-sig") if name else ""
        return load(given, environ, text, name)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise _usage_error(describe("config", name, source, f"cannot be read: {reason}")) from None
    except SettingsError as error:
        raise _usage_error(str(error)) from None


def _run(command: Callable[[], int]) -> None:
    """Run a command and end with its exit code; a setting that cannot be used ends with 2."""
    try:
        code = command()
    except SettingsError as error:
        raise _usage_error(str(error)) from None
    raise typer.Exit(code)


def _usage_error(said: str) -> typer.Exit:
    typer.echo(f"slowtok: {said}", err=True)
    return typer.Exit(2)


def main() -> None:
    """Run the command line; without a command it serves."""
    arguments = sys.argv[1:]
    about = ("-h", "--help", "--version")
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in about):
        arguments = ["serve", *arguments]
    app(args=arguments)


if __name__ == "__main__":
    main()
