"""Several machines side by side."""

import pytest

from slowtok.proxy.cli.fit.asked import AskError, FitOptions, question
from slowtok.proxy.cli.fit.comparison import MAX_MACHINES, others, side_by_side_json
from slowtok.proxy.cli.fit.outlook import outlook

ASKED = FitOptions(
    model="qwen3:8b", gpu="RTX 3060", gpus=3, vram=11.0, bandwidth=300.0, context=8192
)


def test_names_come_apart_or_with_commas() -> None:
    found = others(ASKED, ["RTX 4090, 2 x RTX 3090", "DGX Spark"])

    assert [each.gpu for each in found] == ["RTX 4090", "2 x RTX 3090", "DGX Spark"]


def test_what_describes_the_first_machine_is_not_taken_along_and_the_rest_is() -> None:
    [found] = others(ASKED, ["RTX 4090"])

    assert (found.vram, found.bandwidth) == (None, None)
    assert (found.model, found.context) == ("qwen3:8b", 8192)


@pytest.mark.parametrize("named", ["", "RTX 4090,", " , "])
def test_a_name_that_is_empty_is_refused(named: str) -> None:
    with pytest.raises(AskError, match="--compare: expected the name of a GPU"):
        others(ASKED, [named])


def test_too_many_are_refused() -> None:
    with pytest.raises(AskError, match="at most 19"):
        others(ASKED, ["RTX 4090"] * MAX_MACHINES)


def test_each_machine_has_its_whole_answer() -> None:
    first = FitOptions(model="qwen3:32b", gpu="RTX 3060")
    asked = [first, *others(first, ["RTX 4090, 2 x RTX 3090"])]
    found = side_by_side_json([outlook(question(each, None), None) for each in asked])

    assert found["setup"].endswith("on NVIDIA GeForce RTX 3060")
    assert found["fits"] is False
    assert [each["setup"].partition(" on ")[2] for each in found["compare"]] == [
        "NVIDIA GeForce RTX 4090", "2 x NVIDIA GeForce RTX 3090",
    ]  # fmt: skip
    assert all(each["fits"] and each["table"] for each in found["compare"])
