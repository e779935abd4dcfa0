"""One frame of `slowtok top`. Pure: the proxy's own pages in, something to print out.

A stuck request and a slow one look different: the slow one has a rate, the stuck one says for how
long nothing came.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slowtok.proxy.cli.render.console import VERDICT_STYLES, is_telling, named, plain, request_line
from slowtok.proxy.cli.render.overview import kind_words, no_answer
from slowtok.proxy.cli.render.units import GIB, counted, seconds
from slowtok.proxy.cli.report.text import MAX_NAME_CHARS, short_name

STUCK_S = 5.0
"""A token that takes longer is as good as none; the slowest setups give one in 2 s. No source."""

NARROW = 160  # columns; below, a recent request is its verdict, model and cause alone
COLUMNS = ("model", "phase", "for", "tokens", "now/s", "expected", "state")
MAX_WANTED = ("model", "now/s", "state")
NUMBERS = ("for", "tokens", "now/s", "expected")
FOR_ALL = 78  # columns; below, only what is most wanted
OTHERS_CHARS, MAX_WANTED_CHARS, LEAST_NAME_CHARS = 65, 26, 8  # beside the model's name
RECENT_OTHERS_CHARS = 45
MAX_RUNNING, MAX_RECENT = 20, 8
BAR_CHARS = 10
HOT_RATIO = 0.9

Facts = Mapping[str, Any]


def frame(status: Facts, records: Sequence[Facts], *, width: int, keys: str = "") -> RenderableType:
    """Return the whole frame; `records` are the newest first, `keys` says how to leave."""
    parts: list[RenderableType] = [_head(status, keys)]
    running = status.get("running") or []
    if running:
        parts.append(_running(running, records, width))
    else:
        parts.append(Text("nothing runs now", "dim"))
    if lanes := list(_lanes(status)):
        parts += [Text(), *lanes]
    if recent := [r for r in records if is_telling(r)][:MAX_RECENT]:
        parts += [Text("\nrecent", "dim"), *(_recent(r, width) for r in recent)]
    return Group(*parts)


def band_of(entry: Facts, records: Sequence[Facts]) -> tuple[float, float] | None:
    """Return the band that the newest finished request of the same model was held against."""
    for record in records:
        expected = record.get("expected") or {}
        if record.get("model") == entry.get("model") and "decode_low_tps" in expected:
            return expected["decode_low_tps"], expected["decode_high_tps"]
    return None


def state_of(entry: Facts, band: tuple[float, float] | None) -> tuple[str, str]:
    """Return how a running request fares, in a word, and its style."""
    silent_s, rate = entry.get("silent_s"), entry.get("recent_tps", entry.get("decode_tps"))
    if entry.get("phase") == "decode" and silent_s is not None and silent_s >= STUCK_S:
        return f"nothing for {silent_s:.0f} s", "bold red"
    if rate is None or band is None:
        return _prefill(entry.get("prefill") or {}), ""
    return ("below", "bold red") if rate < band[0] else ("in band", "green")


def _prefill(told: Facts) -> str:
    """Return how far a prefill is, and about how long it still takes."""
    eta = f"~{told['eta_s']:.0f} s to go" if told.get("eta_s") else ""
    if not told.get("about_tokens") or "tokens" not in told:
        return eta
    share = f"~{told['tokens'] / told['about_tokens']:.0%}"
    return f"{share}, {eta}" if eta else share


def _head(status: Facts, keys: str) -> Text:
    counts = status.get("counts") or {}
    text = Text(f"slowtok {plain(str(status.get('version') or ''))}", "bold")
    text.append(f" at {plain(str(status.get('listen', '?')))}", "not bold")
    text.append(f"  {counted(counts.get('requests', 0), 'request')}", "not bold")
    for engine in status.get("engines") or []:
        style = "not bold" if engine.get("answers") else "bold red"
        mark = "" if engine.get("answers") else f" {no_answer(engine)}"
        text.append(f"  {plain(_engine(engine))}{mark}", style)
    if keys:
        text.append(f"  {keys}", "dim not bold")
    return text


def _engine(engine: Facts) -> str:
    """Name an engine by its kind; one that has never answered by its address."""
    kind = kind_words(str(engine.get("kind") or ""))
    return f"{kind} at {engine.get('url', '?')}" if kind == "engine" else kind


def _running(running: Sequence[Facts], records: Sequence[Facts], width: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    names = [name for name in COLUMNS if width >= FOR_ALL or name in MAX_WANTED]
    for name in names:
        side: Literal["left", "right"] = "right" if name in NUMBERS else "left"
        table.add_column("" if name == "state" else name, justify=side, no_wrap=True)
    for entry in running[:MAX_RUNNING]:
        cells = _cells(entry, band_of(entry, records), width)
        table.add_row(*(cells[name] for name in names))
    more = len(running) - MAX_RUNNING
    return Group(table, Text(f"and {more} more", "dim")) if more > 0 else table


def _cells(entry: Facts, band: tuple[float, float] | None, width: int) -> dict[str, RenderableType]:
    word, style = state_of(entry, band)
    phase = str(entry.get("phase", "?"))
    others = OTHERS_CHARS if width >= FOR_ALL else MAX_WANTED_CHARS
    most_chars = min(max(width - others, LEAST_NAME_CHARS), MAX_NAME_CHARS)
    return {
        "model": short_name(str(entry.get("model") or "?"), most_chars),
        "phase": phase,
        "for": _seconds(entry.get("since_s")),
        "tokens": f"{entry['tokens']:,}" if "tokens" in entry else "",
        "now/s": _rate(entry.get("recent_tps", entry.get("decode_tps"))),
        "expected": "" if band is None else f"{_rate(band[0])}-{_rate(band[1])}",
        "state": Text(word or ("" if width >= FOR_ALL else phase), style),
    }


def _lanes(status: Facts) -> Iterator[RenderableType]:
    """Yield a line for each GPU, and one for the host."""
    for gpu in status.get("gpus") or []:
        yield _gpu(gpu)
    host = status.get("host") or {}
    if "cpu_busy_cores" in host and host.get("cpu_cores"):
        text = _bar("host ", host["cpu_busy_cores"] / host["cpu_cores"])
        text.append(f"  {host['cpu_busy_cores']:.1f} of {host['cpu_cores']} cores")
        if "server_cpu_cores" in host:
            text.append(f", the engine {host['server_cpu_cores']:.1f}")
        if "available_bytes" in host:
            text.append(f"  {host['available_bytes'] / GIB:.1f} GiB RAM free")
        yield text


def _gpu(gpu: Facts) -> Text:
    now, vram = gpu.get("now") or {}, gpu.get("vram") or {}
    text = _bar(f"GPU {gpu.get('index', '?')}", now.get("busy_ratio"))
    if "power_w" in now:
        limit = gpu.get("power_limit_w")
        of = f"/{limit:.0f}" if limit else ""
        text.append(f"  {now['power_w']:.0f}{of} W", _hot(now["power_w"], limit))
    if "sm_clock_mhz" in now:
        most = gpu.get("max_sm_clock_mhz")
        text.append(f"  {now['sm_clock_mhz']:.0f}{f'/{most:.0f}' if most else ''} MHz")
    if "temperature_c" in now:
        slows_at = gpu.get("slowdown_temperature_c")
        text.append(f"  {now['temperature_c']:.0f} C", _hot(now["temperature_c"], slows_at))
    if vram.get("total_bytes") and vram.get("free_bytes") is not None:
        used = (vram["total_bytes"] - vram["free_bytes"]) / GIB
        text.append(f"  VRAM {used:.1f}/{vram['total_bytes'] / GIB:.0f} GiB")
    reasons = [name for name in now.get("reasons") or () if name != "gpu-idle"]
    if reasons:
        text.append(f"  {plain(', '.join(map(str, reasons)))}", "yellow")
    return text.append(f"  {plain(str(gpu.get('name') or ''))}", "dim")


def _bar(name: str, ratio: float | None) -> Text:
    text = Text(name, "bold")
    if ratio is None:
        return text.append(f" [{'?':^{BAR_CHARS}}]     ", "dim not bold")
    full = min(max(round(ratio * BAR_CHARS), 0), BAR_CHARS)
    text.append(f" [{'#' * full:<{BAR_CHARS}}]", "not bold cyan")
    return text.append(f" {100 * ratio:>3.0f} %", "not bold")


def _hot(value: float, limit: float | None) -> str:
    return "not bold yellow" if limit and value >= HOT_RATIO * limit else "not bold"


def _recent(record: Facts, width: int) -> Text:
    if width >= NARROW:
        line = request_line(record)
        line.end = "\n"
    else:
        verdict = str(record.get("verdict", "-"))
        line = Text(f"{verdict:<8}", VERDICT_STYLES.get(verdict, ""))
        most_chars = min(max(width - RECENT_OTHERS_CHARS, LEAST_NAME_CHARS), MAX_NAME_CHARS)
        line.append(short_name(str(record.get("model") or "?"), most_chars), "default not bold")
        if "decode_tps" in record.get("rate", {}):
            line.append(f"  {record['rate']['decode_tps']:.1f}/s", "default not bold")
        for finding in named(record)[:1]:
            lost = seconds(finding["lost_ms"])
            line.append(f"  {finding['cause']} lost {lost}", "default bold")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds(value * 1000)


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.{0 if value >= 10 else 1}f}"
