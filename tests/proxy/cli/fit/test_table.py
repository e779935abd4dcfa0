"""Which types of weights fit at which context, and how fast each is there."""

from itertools import pairwise
from typing import Any

import pytest

from slowtok.proxy.cli.fit.asked import FitOptions, question
from slowtok.proxy.cli.fit.table import Row, contexts_of, table, table_json


def rows(**asked: Any) -> dict[str | None, Row]:
    found = table(question(FitOptions(**asked), None))
    return {row.facts.model.quantisation: row for row in found}


def test_a_type_that_nobody_named_gives_a_row_for_each_common_one() -> None:
    found = rows(model="qwen3:8b", gpu="RTX 3060 12GB")

    assert list(found) == ["Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16"]


@pytest.mark.parametrize(
    ("asked", "quantisation"),
    [
        ({"model": "qwen3:8b", "quant": "Q6_K"}, "Q6_K"),
        ({"model": "qwen3:8b-q8_0"}, "Q8_0"),
        ({"model": "gpt-oss:20b"}, "MXFP4"),
        ({"params": 8.0, "quant": "Q4_0"}, "Q4_0"),
    ],
)
def test_a_type_that_is_fixed_has_one_row(asked: dict[str, Any], quantisation: str) -> None:
    assert list(rows(gpu="RTX 4090", **asked)) == [quantisation]


@pytest.mark.parametrize(
    ("asked", "contexts"),
    [
        ({"model": "qwen3:8b"}, (4096, 16_384, 32_768, 40_960)),
        ({"model": "qwen3:8b", "context": 8192}, (4096, 8192, 16_384, 32_768, 40_960)),
        ({"model": "qwen3:8b", "context": 100_000}, (4096, 16_384, 32_768, 40_960)),
        ({"model": "TinyLlama-1.1B", "quant": "Q8_0"}, (2048,)),
        ({"model": "gpt-oss:20b"}, (4096, 16_384, 32_768, 65_536, 131_072)),
        ({"params": 8.0, "quant": "Q8_0"}, (4096, 16_384, 32_768, 65_536, 131_072)),
    ],
)
def test_no_column_is_longer_than_the_model_was_trained_for(
    asked: dict[str, Any], contexts: tuple[int, ...]
) -> None:
    assert contexts_of(question(FitOptions(gpu="RTX 4090", **asked), None)) == contexts


def test_a_cell_is_the_answer_to_its_own_question() -> None:
    """One arithmetic: the table says what `--context` and `--quant` would."""
    cell = rows(model="qwen3:8b", gpu="RTX 4090")["Q6_K"].cells[1]
    [alone] = rows(model="qwen3:8b", quant="Q6_K", context=16_384, gpu="RTX 4090").values()

    assert cell.context_tokens == 16_384
    assert cell.found.decode == alone.cells[1].found.decode
    assert cell.found.footprint == alone.cells[1].found.footprint


def test_an_8b_on_a_card_of_360_gb_per_s_decodes_at_about_50() -> None:
    first = rows(model="qwen3:8b", gpu="RTX 3060 12GB")["Q4_K_M"].cells[0]

    assert first.found.fits is True
    assert first.found.decode.expected == pytest.approx(52, abs=6)


def test_more_bits_and_more_context_are_never_faster_and_never_smaller() -> None:
    found = list(rows(model="qwen3:14b", gpu="RTX 4060 Ti 16GB").values())

    for row in found:
        rates = [cell.found.decode.expected or 0 for cell in row.cells if cell.found.fits]
        assert rates == sorted(rates, reverse=True)
    for smaller, larger in pairwise(found):
        for one, other in zip(smaller.cells, larger.cells, strict=True):
            assert (one.missing_bytes or 0) <= (other.missing_bytes or 0)


def test_what_is_missing_is_what_the_memory_would_have_to_have_more() -> None:
    cell = rows(model="qwen3:8b", gpu="RTX 3060 12GB")["F16"].cells[0]
    missing_gib = (cell.missing_bytes or 0) / 2**30
    larger = {"model": "qwen3:8b", "gpu": "RTX 3060", "vram": 12 + missing_gib + 0.001}

    assert cell.found.fits is False
    assert rows(**larger)["F16"].cells[0].found.fits is True


def test_nothing_is_missing_where_it_fits_or_the_memory_is_not_known() -> None:
    fitting = rows(model="qwen3:8b", gpu="RTX 5090")["Q4_K_M"].cells[0]
    unknown = rows(model="qwen3:8b", gpu="A new card", bandwidth=500.0)["Q4_K_M"].cells[0]

    assert (fitting.found.fits, fitting.missing_bytes) == (True, None)
    assert (unknown.found.fits, unknown.missing_bytes) == (None, None)


def test_the_longest_that_fits_is_none_where_none_does() -> None:
    found = rows(model="qwen3:8b", gpu="RTX 3060 12GB")
    longest = found["Q4_K_M"].largest_fitting

    assert longest is not None
    assert longest.context_tokens == 32_768
    assert found["F16"].largest_fitting is None


def test_json_has_every_cell() -> None:
    answer = table_json(table(question(FitOptions(model="qwen3:8b", gpu="RTX 3060"), None)))

    assert answer[0]["quantisation"] == "Q4_K_M"
    assert answer[0]["weights_gib"] == pytest.approx(4.67, abs=0.01)
    assert answer[0]["cells"][0].keys() == {
        "context_tokens", "fits", "missing_gib", "gpu_layers", "decode_tps",
    }  # fmt: skip
    assert answer[-1]["cells"][0]["fits"] is False
    assert answer[-1]["cells"][0]["missing_gib"] > 5
