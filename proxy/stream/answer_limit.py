"""The limit that a call sets to the length of its answer. Pure."""

from slowtok.proxy.stream.call import Call


def max_tokens_of(call: Call) -> int | None:
    """Return how many tokens its answer has at most; None where the call sets no limit.

    Of several limits the largest is taken: engines differ in which one counts. Several answers at
    once share no limit, and limits below 1 mean none.
    """
    if call.said.get("n") not in (None, 1):
        return None
    options = call.said.get("options")
    places = (call.said, options if isinstance(options, dict) else {})
    given = [place.get(name) for place in places for name in call.api.limits]
    return max((limit for limit in given if type(limit) is int and limit > 0), default=None)
