"""Progress of a request beside its arrivals, for the live views alone.

Times are on the monotonic clock.
"""

from dataclasses import dataclass

from slowtok.proxy.engines.counters.slots import WorkingSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotProgress:
    """How far a request's slot is, by the engine's word.

    `begin_s` is when its prefill began, as far as is known; `read_at_s` when it was last seen to
    have read more, in the `steps`th step. `decoded_at_s` is the same of its answer, of which
    `first_tokens` were there at `first_at_s`.
    """

    slot: WorkingSlot
    begin_s: float
    read_at_s: float
    steps: int = 0
    first_at_s: float | None = None
    first_tokens: int = 0
    decoded_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The request has no slot yet: all `slots` work for others."""

    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEstimate:
    """About how many tokens a prompt has, from earlier requests.

    `new_tokens` are those that no earlier prompt began with: the rest may come from the cache.
    `tps` is the rate of the model's last prefill, if one was long enough.
    """

    tokens: int
    new_tokens: int
    tps: float | None
