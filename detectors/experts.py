"""Which share of its experts a mixture of experts reads when several tokens are computed together.

Each token chooses `used` of `experts` for itself. Tokens of one batch (other requests, or drafts
that are checked together) share those that they happen to have in common, and read the union. It is
counted here as if each choice were independent and all experts equally likely: text on one subject
chooses alike, so that this is what a batch reads at most, and close to it for unlike requests.
"""

import math


def expert_union_ratio(experts: int, used: int, sequences: float) -> float:
    """Return the share of all experts, 0 to 1, that a step of so many `sequences` reads.

    It is `used / experts` for one sequence and goes towards 1 with many: 1 - (1 - k/E)^B. A model
    without experts reads all of itself (1.0), however many share a step.
    """
    if experts <= 1 or not 0 < used < experts:
        return 1.0
    return 1.0 - math.pow(1.0 - used / experts, max(sequences, 1.0))
