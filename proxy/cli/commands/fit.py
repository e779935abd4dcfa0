"""`slowtok fit`: does a model fit, how fast will it be, is a claimed rate possible."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO

import orjson
import psutil
import typer
from rich.console import Console

from slowtok.config.settings import Settings
from slowtok.detectors.case.machine import DeviceFacts
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.fit.asked import AskError, FitOptions, check_positive, question
from slowtok.proxy.cli.fit.batch import MAX_LINE_BYTES, answers
from slowtok.proxy.cli.fit.comparison import others, side_by_side, side_by_side_json
from slowtok.proxy.cli.fit.layout import page
from slowtok.proxy.cli.fit.outlook import outlook, outlook_json
from slowtok.proxy.cli.options import (
    Config,
    Json,
    Listen,
    RamBandwidth,
    StateDir,
    settings_from,
)
from slowtok.proxy.cli.render.console import json_text
from slowtok.proxy.cli.running_proxy import running_at, with_state_of
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
        return complain("--claim judges one machine only: leave out --compare", USAGE)
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


# The command line.


def billions(text: str | float) -> float:
    """Read `8`, `8B` or `500M` as billions.

    Raises:
        typer.BadParameter: it is none of these.
    """
    said = str(text).strip().lower()
    scale = {"b": 1.0, "m": 1e-3, "t": 1e3}.get(said[-1:])
    try:
        return float(said) if scale is None else float(said[:-1]) * scale
    except ValueError:
        raise typer.BadParameter(
            f"{str(text)!r} is not a number of weights; write 8 or 8B for 8 billion, or 500M"
        ) from None


def fit(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A GGUF file, a Hugging Face folder, or a published model's name.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A GPU, like 'RTX 5090'; cpu for none; default: this machine's."
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="N", help="How many GPUs of this kind [1].")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Other GPUs to compare, like '2 x RTX 3090'."),
    ] = None,
    vram: Annotated[float | None, typer.Option(metavar="GIB", help="Memory of one GPU.")] = None,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="GB/S", help="Peak bandwidth of one GPU's memory.")
    ] = None,
    ram_bandwidth: RamBandwidth = None,
    params: Annotated[
        float | None,
        typer.Option(metavar="B", parser=billions, help="Billions of weights: 8 or 8B."),
    ] = None,
    active_params: Annotated[
        float | None,
        typer.Option(
            metavar="B", parser=billions, help="Billions of weights that each token uses."
        ),
    ] = None,
    quant: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Type of the weights, like Q4_K_M.")
    ] = None,
    weights: Annotated[
        float | None, typer.Option(metavar="GIB", help="Size of the weights.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(metavar="N", help="Layers of the model (n_layer).")
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(metavar="N", help="Heads of keys and values (n_head_kv).")
    ] = None,
    head_dim: Annotated[
        int | None, typer.Option(metavar="N", help="Size of one head, like 128.")
    ] = None,
    experts: Annotated[
        int | None,
        typer.Option(metavar="N", help="Experts in each layer, of a mixture of experts."),
    ] = None,
    experts_used: Annotated[
        int | None, typer.Option(metavar="N", help="Experts that each token uses.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Tokens that the KV cache has room for [4096]."),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Tokens that are in the KV cache, for the rates (half of --context).",
        ),
    ] = None,
    kv_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Type of the KV cache: f16, q8_0, ...")
    ] = None,
    gpu_layers: Annotated[
        int | None, typer.Option(metavar="N", help="Layers on GPUs; default: as many as fit.")
    ] = None,
    cpu_moe_layers: Annotated[
        int | None, typer.Option(metavar="N", help="Layers whose experts stay in RAM.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="The engine: llama.cpp, vllm, ollama, ...")
    ] = None,
    claim: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="A decode rate, in tokens/s, to judge: is it possible?"),
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Setups as JSON lines on standard input.")
    ] = False,
    listen: Listen = None,
    state_dir: StateDir = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Before a run: does the model fit, what rate to expect, is a claimed rate possible."""
    from slowtok.proxy.cli.commands.fit import run_batch, run_fit  # noqa: PLC0415 - as above
    from slowtok.proxy.cli.fit.asked import FitOptions  # noqa: PLC0415 - as above

    if batch:
        raise typer.Exit(run_batch())
    given = {"listen": listen, "state_dir": state_dir, "ram_bandwidth": ram_bandwidth}
    settings = settings_from({**given, "json": json or None}, config)
    # that of the environment or a file is this machine's, which a named GPU may not be in
    ram = settings.ram_bandwidth if gpu is None or ram_bandwidth is not None else 0.0
    asked = FitOptions(
        model=model, gpu=gpu, gpus=gpus, vram=vram, bandwidth=bandwidth,
        ram_bandwidth=ram or None, params=params, active_params=active_params, quant=quant,
        weights=weights, layers=layers, kv_heads=kv_heads, head_dim=head_dim, experts=experts,
        experts_used=experts_used, context=context, depth=depth, kv_type=kv_type,
        gpu_layers=gpu_layers, cpu_moe_layers=cpu_moe_layers, engine=engine,
    )  # fmt: skip
    raise typer.Exit(run_fit(settings, asked, claim, compare or []))
