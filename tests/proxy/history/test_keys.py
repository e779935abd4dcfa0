"""The key that rates are kept under."""

from dataclasses import replace

import pytest

from fakes.cases import healthy, with_envelope, with_server, with_tokens
from slowtok.detectors.case.case import Concurrency, Neighbours
from slowtok.detectors.case.engine import EngineActivity
from slowtok.proxy.history.keys import decode_setup, is_alone, model_of, prefill_setup


@pytest.mark.parametrize(
    ("context_tokens", "octave"),
    [(None, "?"), (0, "0-1k"), (1023, "0-1k"), (1024, "1k-2k"), (70_000, "64k-128k")],
)
def test_contexts_are_put_into_octaves(context_tokens: int | None, octave: str) -> None:
    assert decode_setup(with_envelope(healthy(), context_tokens=context_tokens)).tokens == octave


def test_prompts_are_put_into_octaves_by_what_was_computed() -> None:
    assert prefill_setup(with_tokens(healthy(), prompt=9000, cached=6500)).tokens == "2k-4k"


@pytest.mark.parametrize(
    ("others", "sequences"),
    [
        (0.0, "alone"),
        (0.1, "alone"),
        (0.2, "2"),
        (1.0, "2"),
        (1.1, "3-4"),
        (3.0, "3-4"),
        (7, "5-8"),
    ],
)
def test_company_is_put_into_octaves(others: float, sequences: str) -> None:
    setup = decode_setup(replace(healthy(), neighbours=Neighbours(decode_mean=others)))

    assert setup.sequences == sequences
    assert is_alone(setup) is (sequences == "alone")


def test_an_engine_elsewhere_has_none_of_our_gpus() -> None:
    elsewhere = with_server(healthy(), local=False, url="http://10.0.0.2:8080")

    assert decode_setup(elsewhere).device == "http://10.0.0.2:8080"


def test_the_digest_names_a_model_whatever_it_is_called() -> None:
    model = replace(healthy().model, digest="abc")

    assert model_of(replace(healthy(), model=model)) == "abc"
    assert model_of(healthy()) == "smollm2 98000000"
    assert model_of(replace(healthy(), model=replace(model, digest=None, file_bytes=None))) == (
        "smollm2"
    )


@pytest.mark.parametrize(
    ("neighbours", "running_max", "sequences"),
    [
        pytest.param(Neighbours(), 21, "17-32", id="only the gauges around it show 20 others"),
        pytest.param(Neighbours(counted=True), 21, "alone", id="looks in its decode showed nobody"),
        pytest.param(Neighbours(decode_mean=20.0, counted=True), 1, "17-32", id="they showed 20"),
        pytest.param(Neighbours(), 1, "alone", id="nobody anywhere"),
    ],
)
def test_alone_is_also_by_the_engines_own_gauges(
    neighbours: Neighbours, running_max: int, sequences: str
) -> None:
    activity = EngineActivity(span_s=9.0, alone=running_max == 1, running_max=running_max)
    case = replace(healthy(), neighbours=neighbours, activity=activity)

    assert decode_setup(case).sequences == sequences


@pytest.mark.parametrize(
    "neighbours",
    [
        pytest.param(
            Neighbours(waiting=Concurrency(others_mean=3.0)), id="hidden ones while it waited"
        ),
        pytest.param(Neighbours(waiting=Concurrency(served_first=3)), id="came in the same moment"),
        pytest.param(Neighbours(prefill=Concurrency(others_mean=3.0)), id="hidden ones beside it"),
    ],
)
def test_a_prefill_beside_others_is_not_alone(neighbours: Neighbours) -> None:
    assert prefill_setup(replace(healthy(), neighbours=neighbours)).sequences == "3-4"
