"""Engines and their models: what answers, and what decode to expect of each model."""

from collections.abc import Iterator

from slowtok.detectors.case.case import Envelope, Range
from slowtok.detectors.case.named_facts import how_to_enable
from slowtok.detectors.expectation.envelope import expect
from slowtok.detectors.expectation.memory import UNKNOWN_RAM
from slowtok.proxy.engines.probing.server_facts import UNMAPPED_REMOTE
from slowtok.proxy.inspection.check import Check, gib, measured
from slowtok.proxy.inspection.seen import EngineSeen, Seen, ServingSeen

START_ONE = (
    "start one, for example with llama-server -m model.gguf or with ollama serve; name one that "
    "runs elsewhere: slowtok doctor --upstream http://HOST:PORT"
)

MEASURE_RAM = (
    "slowtok serve measures the RAM's bandwidth once, in a second in which there are no requests "
    "and the cores rest"
)


def check_engines(seen: Seen) -> Iterator[Check]:
    """Yield what is known of each engine and of what it has loaded."""
    if not seen.engines:
        said = f"no engine was found; slowtok looked at {seen.looked_at}"
        yield Check(area="engine", name="found", state="unknown", said=said, advice=START_ONE)
    for engine in seen.engines:
        yield _found(engine)
        if engine.answers and not engine.is_slowtok:
            yield from _of_models(seen, engine)


def _found(engine: EngineSeen) -> Check:
    about, server = engine.name, engine.server
    if engine.is_slowtok:
        return Check(
            area="engine", name="found", about=about, state="note",
            said=f"what answers at {engine.url} is slowtok itself",
            advice="name the engine behind it: slowtok doctor --upstream http://HOST:PORT",
        )  # fmt: skip
    if not engine.answers:
        return Check(
            area="engine", name="found", about=about, state="unknown",
            said=f"nothing answers at {engine.url}",
            advice="start the engine, or name its address with --upstream",
        )  # fmt: skip
    where = _elsewhere(server.unmapped) if server.local is False else _process(server.pid)
    version = f" {server.version}" if server.version else ""
    through = f" behind {server.through}" if server.through not in (None, server.kind) else ""
    return Check(
        area="engine", name="found", about=about, state="ok",
        said=f"{server.kind}{version}{through} at {engine.url}, {where}",
        numbers=measured(pid=server.pid),
    )  # fmt: skip


def _elsewhere(unmapped: str | None) -> str:
    """Return where an engine is that does not run at its address."""
    return "on another machine" if unmapped in (None, UNMAPPED_REMOTE) else f"where {unmapped}"


def _process(pid: int | None) -> str:
    return f"pid {pid}" if pid is not None else "process not seen"


def _of_models(seen: Seen, engine: EngineSeen) -> Iterator[Check]:
    if not engine.serving:
        names = ", ".join(engine.models[:5]) or "none"
        more = f" and {len(engine.models) - 5} more" if len(engine.models) > 5 else ""
        said = f"no model is known to be in memory; the engine offers {names}{more}"
        yield Check(area="engine", name="model", about=engine.name, state="note", said=said)
    for serving in engine.serving:
        yield _model(engine, serving)
        if engine.server.local is not False:
            yield _expected(seen, engine, serving)


def _model(engine: EngineSeen, serving: ServingSeen) -> Check:
    server, model = serving.server, serving.model
    layers = f"{model.layers} layers" if model.layers else None
    context = f"{server.context_tokens:,} tokens of context" if server.context_tokens else None
    slots = f"{server.slots} slots" if server.slots and server.slots > 1 else None
    asleep = "put away to sleep" if server.slept else None
    size = gib(model.file_bytes) if model.file_bytes else None
    parts = (size, model.quantisation, layers, context, slots, asleep)
    return Check(
        area="engine", name="model", about=engine.name, state="ok",
        said=": ".join(filter(None, (serving.label, ", ".join(filter(None, parts))))),
        numbers=measured(
            weights_bytes=model.file_bytes,
            layers=model.layers,
            context_tokens=server.context_tokens,
            slots=server.slots,
        ),
    )  # fmt: skip


def _expected(seen: Seen, engine: EngineSeen, serving: ServingSeen) -> Check:
    server, model = serving.server, serving.model
    full, empty = (
        expect(model, seen.device, server, context) for context in (server.context_tokens, 0)
    )
    if empty.decode is None:
        return _no_expectation(engine, serving, empty)
    said = f"decode {_band(empty)} tokens/s at an empty context"
    if full.decode is not None:
        said += f", {_band(full)} at {server.context_tokens:,} tokens"
    shown = full if full.decode is not None else empty
    as_configured = shown.as_configured
    if as_configured is not None:
        said += f"; as it is set up now, {_range(as_configured)}"
    return Check(
        area="engine", name="expected-rate", about=engine.name, state="ok",
        said=said,
        basis="; ".join(filter(None, (shown.basis, *shown.because))),
        advice=MEASURE_RAM if UNKNOWN_RAM in shown.because else None,
        numbers=measured(
            empty_low_tps=empty.decode.low,
            empty_high_tps=empty.decode.high,
            low_tps=full.decode.low if full.decode else None,
            high_tps=full.decode.high if full.decode else None,
            ceiling_tps=shown.ceiling_tps,
            as_configured_low_tps=as_configured.low if as_configured else None,
            as_configured_high_tps=as_configured.high if as_configured else None,
        ),
    )  # fmt: skip


def _no_expectation(engine: EngineSeen, serving: ServingSeen, envelope: Envelope) -> Check:
    reason = "; ".join(envelope.because) or "there is nothing that it could be computed from"
    advice = None
    if serving.model.read_bytes is None:
        reason = serving.unreadable or reason
        advice = how_to_enable("bytes read per token")
    return Check(
        area="engine", name="expected-rate", about=engine.name, state="unknown",
        said=f"the expected decode rate is not known: {reason}", advice=advice,
        numbers=measured(ceiling_tps=envelope.ceiling_tps),
    )  # fmt: skip


def _band(envelope: Envelope) -> str:
    return _range(envelope.decode) if envelope.decode else "?"


def _range(band: Range) -> str:
    return "-".join(
        f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}" for rate in (band.low, band.high)
    )
