"""The answer for human eyes: memory part by part, rates, what fits at most, the claim. Pure."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slowtok.detectors.case.finding import number
from slowtok.detectors.expectation.envelope import Claim
from slowtok.detectors.expectation.footprint import FIT_MARGIN_BYTES, GIB
from slowtok.detectors.expectation.prospect import ExpectedRate
from slowtok.proxy.cli.fit.launch import launches
from slowtok.proxy.cli.fit.outlook import Outlook
from slowtok.proxy.cli.fit.table import Cell
from slowtok.proxy.cli.render.console import plain

_FITS = {
    True: ("It fits", "green"),
    False: ("It does not fit", "bold red"),
    None: ("Too close to call", "yellow"),
}
_CLAIMS = {"impossible": "bold red", "unheard-of": "yellow", "slow": "yellow", "plausible": "green"}


def page(answer: Outlook) -> RenderableType:
    """Return the whole answer."""
    parts: list[RenderableType] = [Text(plain(answer.question.title), "bold"), Text()]
    parts += [_memory(answer), _verdict(answer), Text(), _rates(answer), Text()]
    if answer.claim is not None:
        parts += [_claim(answer.claim), Text()]
    parts += [*_grid(answer), Text(), *_commands(answer)]
    parts += [_indented(line) for line in answer.found.basis]
    return Group(*parts)


def _indented(line: str) -> Padding:
    return Padding(Text(plain(line), "dim"), (0, 0, 0, 2))


def _memory(answer: Outlook) -> Table:
    table = _table("Memory", "GiB")
    found, context = answer.found, answer.question.context_tokens
    needed = found.footprint
    if needed is None:
        return table
    embeddings = needed.embedding_bytes if answer.question.facts.device.gpus else 0
    table.add_row("weights", gib_text(needed.weights_bytes), _beside(embeddings))
    server = answer.question.facts.server
    table.add_row("KV cache", gib_text(needed.kv_bytes), f"{context:,} tokens, {server.kv_type_k}")
    low, high = gib_text(needed.least_overhead_bytes), gib_text(needed.most_overhead_bytes)
    table.add_row("buffers", f"{low} - {high}", "for computing, and for the driver")
    most = needed.most_bytes
    total = gib_text(needed.least_bytes) + ("" if most is None else f" - {gib_text(most)}")
    gpus = answer.question.facts.device.gpus
    reserve = f"engines usually leave {gib_text(FIT_MARGIN_BYTES)} more free" if gpus else ""
    table.add_row("needed", total, reserve)
    table.add_row("available", gib_text(found.room_bytes), "" if found.room_bytes else "not known")
    return table


def _beside(embedding_bytes: int) -> str:
    return f"{gib_text(embedding_bytes)} of it can stay in RAM" if embedding_bytes else ""


def _verdict(answer: Outlook) -> Text:
    if answer.found.room_bytes is None:
        return Text("Whether it fits is not known: the memory is not.", "yellow")
    said, style = _FITS[answer.found.fits]
    return Text(said, style).append(f"{_at_most(answer)}.", "default not bold")


def _at_most(answer: Outlook) -> str:
    """Return which context fits for sure, and how many layers where not all do."""
    model, tokens = answer.question.facts.model, answer.most_context_tokens
    if not answer.question.facts.device.gpus:
        return ""
    if answer.found.fits:
        if tokens and tokens == answer.question.trained_context_tokens:
            return f", with all {tokens:,} tokens of context that the model was trained for"
        most = max(_round(tokens or 0), min(tokens or 0, answer.question.context_tokens))
        return f", with up to {most:,} tokens of context" if most else ""
    ways = []
    if tokens:
        ways.append(f"up to {_round(tokens):,} tokens of context")
    if answer.most_gpu_layers is not None:
        ways.append(f"{answer.most_gpu_layers} of {model.layers} layers on GPUs")
    return f"; for sure with {' or '.join(ways)}" if ways else ""


def _round(tokens: int) -> int:
    step = 1000 if tokens >= 10_000 else 100
    return tokens // step * step


def _rates(answer: Outlook) -> Table:
    table = _table("Tokens per second", "low", "expected", "high", "ceiling")
    depth, context = answer.question.facts.context_tokens, answer.question.context_tokens
    rows = {0: answer.empty, depth: answer.found, context: answer.full}
    for tokens, found in sorted(rows.items()):
        table.add_row(f"decode at {tokens:,} tokens", *_numbers(found.decode))
    table.add_row("prefill", *_numbers(answer.found.prefill))
    return table


def _grid(answer: Outlook) -> list[RenderableType]:
    """Return what fits at which context, in each type of weights that can be chosen."""
    contexts = [_short(cell.context_tokens) for cell in answer.rows[0].cells]
    grid = _table("Context", "GiB", *contexts)
    for row in answer.rows:
        model = row.facts.model
        type_ = plain(model.quantisation or "as it is")
        cells = (Text(cell_text(cell), _FITS[cell.found.fits][1]) for cell in row.cells)
        grid.add_row(type_, gib_text(model.file_bytes), *cells)
    unknown = answer.question.trained_context_tokens is None
    legend = (
        "Tokens/s expected with half of the context in use. ? fits by the low estimate of memory, "
        "not by the high one. -3.2: 3.2 GiB are missing."
        f"{' The context that the model was trained for is not known.' if unknown else ''}"
    )
    return [grid, Text(legend, "dim")]


def cell_text(cell: Cell) -> str:
    """Return the expected rate where it fits, else the GiB that are missing."""
    found = cell.found
    if found.fits is False:
        return f"-{gib_text(cell.missing_bytes)}"
    expected = found.decode.expected
    rate = "?" if expected is None else number(expected)
    return rate if found.fits or rate == "?" else f"{rate} ?"


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens:,}"


def _commands(answer: Outlook) -> list[RenderableType]:
    """Return the lines to copy, each engine's under what they start."""
    parts: list[RenderableType] = []
    for each in launches(answer.question, answer.rows):
        what = f"{plain(each.quantisation or 'as it is')}, {each.context_tokens:,} tokens"
        parts.append(
            Text(each.engine, "bold underline").append(f"  {what}", "not bold not underline dim")
        )
        parts += [Text(plain(line), overflow="fold") for line in each.lines]
    return [*parts, Text()]


def _claim(claim: Claim) -> Text:
    text = Text(f"{claim.tps:,.6g} tokens/s: ")
    text.append(claim.possibility, _CLAIMS.get(claim.possibility, ""))
    return text.append(f", {claim.because}", "default not bold")


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(title, no_wrap=True, header_style="bold underline")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    if len(columns) == 1:
        table.add_column("", overflow="fold", style="dim")
    return table


def _numbers(found: ExpectedRate) -> tuple[str, ...]:
    values = (found.low, found.expected, found.high, found.ceiling)
    return tuple("?" if v is None else number(v) for v in values)


def gib_text(count: float | None) -> str:
    """Return bytes in GiB, `?` where they are not known."""
    if count is None:
        return "?"
    return f"{count / GIB:.2f}" if count >= GIB / 2 else f"{count / GIB:.2g}"
