"""The options of `slowtok fit`, of which there are many."""

from typing import Annotated

import typer

from slowtok.proxy.cli.options import (
    Config,
    Json,
    Listen,
    RamBandwidth,
    StateDir,
    settings_from,
)


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
        raise typer.BadParameter(f"{str(text)!r} is no number of weights, like 8B") from None


def fit(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A GGUF file, a Hugging Face folder, or a published model's name.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Like 'RTX 5090'; cpu for none; default: this machine."),
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
        float | None, typer.Option(metavar="RATE", help="Is this decode rate possible?")
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
