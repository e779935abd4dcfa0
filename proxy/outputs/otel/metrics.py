"""GenAI metrics of finished requests; `gen_ai.server.*` only from the engine's own timings."""

from collections.abc import Sequence
from itertools import pairwise

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, Meter

from slowtok.detectors.case.case import Case
from slowtok.proxy.outputs.labels import ModelLabels
from slowtok.proxy.outputs.otel.names import Attributes, common
from slowtok.proxy.stream.meter import MAX_STEPS

# Bounds as the conventions give them.
DURATION_S = tuple(0.01 * 2**i for i in range(14))
TOKENS = tuple(4**i for i in range(14))
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

MAX_GAPS = 64
"""Of one answer: each costs 5 us (measured) that tokens of others may wait for. Evenly chosen, so
that the distribution stays what it is; the count does not."""

NAMES: dict[str, tuple[str, str, Sequence[float]]] = {
    "gen_ai.client.operation.duration": ("s", "From first byte to last.", DURATION_S),
    "gen_ai.client.token.usage": ("{token}", "Tokens of a request.", TOKENS),
    "gen_ai.client.operation.time_to_first_chunk": ("s", "To the first token.", DURATION_S),
    "gen_ai.client.operation.time_per_output_chunk": ("s", "Between tokens.", DURATION_S),
    "gen_ai.server.request.duration": ("s", "In the engine.", DURATION_S),
    "gen_ai.server.time_to_first_token": ("s", "Queue, load and prefill.", FIRST_TOKEN_S),
    "gen_ai.server.time_per_output_token": ("s", "Decode of one token.", TOKEN_S),
}


class Instruments:
    """The histograms, which record finished requests."""

    def __init__(self, meter: Meter) -> None:
        self._models = ModelLabels()
        self._of: dict[str, Histogram] = {
            name: meter.create_histogram(
                name, unit, description, explicit_bucket_boundaries_advisory=at
            )
            for name, (unit, description, at) in NAMES.items()
        }

    def record(self, case: Case, context: Context) -> None:
        """Record one request; its span becomes the exemplar."""
        who = common(case, self._models.of(case))
        values = client_values(case) | server_values(case)
        for name, value in values.items():
            if value is not None:
                self._of[name].record(value, who, context)
        for kind, count in (
            ("input", case.timeline.tokens.prompt),
            ("output", case.timeline.tokens.completion),
        ):
            if count:
                attributes: Attributes = {**who, "gen_ai.token.type": kind}
                self._of["gen_ai.client.token.usage"].record(count, attributes, context)
        for gap_s in gaps_s(case):
            self._of["gen_ai.client.operation.time_per_output_chunk"].record(gap_s, who, context)


def client_values(case: Case) -> dict[str, float | None]:
    """Return the values measured by the proxy, outside the engine."""
    return {
        "gen_ai.client.operation.duration": case.phases.total_s,
        "gen_ai.client.operation.time_to_first_chunk": case.phases.ttft_s,
    }


def server_values(case: Case) -> dict[str, float | None]:
    """Return the values reported by the engine; none if it reported nothing, or failed."""
    phases, status = case.phases, case.timeline.status
    if phases.source not in ("engine", "metrics") or (status is not None and status >= 400):
        return {}
    queue_s, prefill_s, decode_s = phases.queue_s, phases.prefill_s, phases.decode_s
    if queue_s is None or prefill_s is None:
        first_s = None
    else:
        first_s = queue_s + (phases.load_s or 0.0) + prefill_s
    return {
        "gen_ai.server.time_to_first_token": first_s,
        "gen_ai.server.time_per_output_token": 1 / phases.decode_tps if phases.decode_tps else None,
        "gen_ai.server.request.duration": None
        if first_s is None or decode_s is None
        else first_s + decode_s,
    }


def gaps_s(case: Case) -> list[float]:
    """Return the times between reads that carried tokens (ITL), at most `MAX_GAPS` of them.

    None for an answer so long that its times were thinned, since those are no gaps between reads.
    """
    if len(case.timeline.token_at_s) >= MAX_STEPS // 2:
        return []
    every = [later - earlier for earlier, later in pairwise(case.timeline.token_at_s)]
    if len(every) <= MAX_GAPS:
        return every
    return [every[i * len(every) // MAX_GAPS] for i in range(MAX_GAPS)]
