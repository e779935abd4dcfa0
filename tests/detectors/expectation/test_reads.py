"""What a batch reads of a mixture of experts."""

import pytest

from slowtok.detectors.expectation.reads import expert_union_ratio


@pytest.mark.parametrize(
    ("experts", "used", "sequences", "ratio"),
    [
        pytest.param(128, 8, 1, 8 / 128, id="one sequence reads its own experts"),
        pytest.param(128, 8, 2, 1 - (120 / 128) ** 2, id="two share few of them"),
        pytest.param(128, 8, 0.5, 8 / 128, id="less than one sequence is one"),
        pytest.param(8, 2, 100, 1.0, id="a large batch reads them all"),
        pytest.param(1, 1, 4, 1.0, id="a dense model reads all of itself"),
        pytest.param(0, 0, 4, 1.0, id="nothing known of experts"),
        pytest.param(8, 8, 4, 1.0, id="all experts are used anyway"),
    ],
)
def test_union(experts: int, used: int, sequences: float, ratio: float) -> None:
    assert expert_union_ratio(experts, used, sequences) == pytest.approx(ratio)
