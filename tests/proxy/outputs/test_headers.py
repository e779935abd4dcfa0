"""The headers of a diagnosed reply, word for word as the contract shows them."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.cases import (
    FIRING,
    case,
    healthy,
    with_envelope,
    with_phases,
    with_timeline,
    with_tokens,
)
from slowtok.detectors.case.case import Case, Range
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.diagnosis.catalog import CATALOG
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.headers import (
    MAX_STRING_CHARS,
    bare,
    decimal,
    diagnosis_headers,
    hint,
    inner_list,
    item,
    previous,
    server_timing,
    string,
)

ID = "0199f3c2-0000-7000-8000-000000000001"

# RFC 9651, sections 3.3.1 to 3.3.3.
INTEGER = re.compile(r"-?\d{1,15}")
DECIMAL = re.compile(r"-?\d{1,12}\.\d{1,3}")
STRING = re.compile(r'"(?:[ !#-\[\]-~]|\\["\\])*"')


def headers(before: Case) -> dict[str, str]:
    return diagnosis_headers(before, diagnose(before))


def known() -> Case:
    """A reply with all the numbers of the documentation's examples."""
    timed = with_phases(
        case(),
        queue_s=0.0003,
        load_s=0.0,
        prefill_s=1.9012,
        decode_s=99.8701,
        prefill_tps=427.1,
        decode_tps=2.11,
    )
    counted = with_tokens(timed, prompt=812, cached=0, completion=211)
    expected = with_envelope(
        counted,
        decode=Range(low=14.23, high=18.96),
        expected_tps=16.0,
        ceiling_tps=22.4,
        basis="roofline, weights 4.58 GiB",
    )
    return with_timeline(expected, proxy_s=0.0002)


def test_numbers() -> None:
    found = headers(known())

    assert found["server-timing"] == (
        "queue;dur=0.3, load;dur=0.0, prefill;dur=1901.2, decode;dur=99870.1, proxy;dur=0.2"
    )
    assert found["slowtok-prefill"] == "812;cached=0;ms=1901.2;rate=427.1"
    assert found["slowtok-decode"] == "211;ms=99870.1;rate=2.11"
    assert found["slowtok-expected"] == '(14.2 19.0);ceiling=22.4;basis="roofline"'


def test_normal_has_no_cause_and_no_hint() -> None:
    found = headers(healthy())

    assert found["slowtok-verdict"] == "normal"
    assert not {"slowtok-cause", "slowtok-hint"} & set(found)


def test_normal_with_something_to_know_has_no_cause_either() -> None:
    assert "slowtok-cause" not in headers(FIRING["long-context"]())


def test_slow_names_the_causes_and_what_to_do() -> None:
    found = headers(FIRING["queued"]())

    assert found["slowtok-verdict"] == "slow;phase=queue"
    assert found["slowtok-cause"] == "queued;confidence=0.95;lost-ms=2500"
    assert found["slowtok-hint"].startswith('"Start llama-server with --parallel 4')


def test_slow_and_unexplained_says_so() -> None:
    found = headers(case(ms_per_token=40))

    assert found["slowtok-verdict"] == "slow;phase=decode"
    assert "slowtok-cause" not in found
    assert found["slowtok-hint"] == (
        f'"Slow, and no known cause fits ({len(CATALOG)} ruled out); see slowtok explain"'
    )


def test_what_is_not_known_is_absent() -> None:
    unknown = with_tokens(known(), prompt=None, cached=None, completion=None)
    bare = with_phases(unknown, queue_s=None, load_s=None, prefill_s=None, decode_s=None)
    found = headers(with_envelope(bare, decode=None))

    assert found == {"server-timing": "proxy;dur=0.2", "slowtok-verdict": "unknown"}


def test_counts_without_times_stand_alone() -> None:
    untimed = with_phases(
        with_tokens(known(), cached=None),
        prefill_s=None,
        prefill_tps=None,
        decode_s=None,
        decode_tps=None,
    )
    found = headers(untimed)

    assert found["slowtok-prefill"] == "812"
    assert found["slowtok-decode"] == "211"


def test_head_of_a_stream_knows_the_proxys_own_time() -> None:
    assert server_timing(None, 0.0002) == "proxy;dur=0.2"


def test_hours_are_written_as_a_plain_number() -> None:
    phases = with_phases(healthy(), decode_s=7200.0).phases

    assert "decode;dur=7200000.0" in server_timing(phases, 0.0)


@pytest.mark.parametrize(
    ("before", "value"),
    [
        (healthy(), f'normal;id="{ID}"'),
        (FIRING["long-context"](), f'normal;id="{ID}"'),
        (FIRING["queued"](), f'slow;id="{ID}";cause="queued"'),
        (case(ms_per_token=40), f'slow;id="{ID}"'),
        (with_timeline(healthy(), status=500), f'unknown;id="{ID}"'),
    ],
)
def test_previous(before: Case, value: str) -> None:
    assert previous(ID, diagnose(before)) == value


def test_what_is_only_for_information_is_no_cause_of_a_slow_request() -> None:
    """The context is long and the rate is low, but the one does not explain the other."""
    told = diagnose(FIRING["long-context"]()).findings
    diagnosis = Diagnosis(verdict="slow", phase="decode", findings=told)

    assert previous(ID, diagnosis) == f'slow;id="{ID}"'
    assert hint(diagnosis).startswith("Slow, and no known cause fits")


@pytest.mark.parametrize("cause", sorted(FIRING))
def test_every_header_is_plain_and_bounded(cause: str) -> None:
    strange = with_envelope(FIRING[cause](), basis='\u00e9"\r\n' * 99)

    for name, value in headers(replace(strange)).items():
        assert name == name.lower()
        assert value.isascii()
        assert value.isprintable()
        assert len(value) < 600


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-7, "-7"),
        (10**20, "999999999999999"),
        (0.0, "0.0"),
        (427.1, "427.1"),
        (2.0006, "2.001"),
        (-0.25, "-0.25"),
        (1e15, "999999999999.0"),
        ("", '""'),
        ('say "no" \\', '"say \\"no\\" \\\\"'),
        ("caf\u00e9\r\nx: y", '"caf???x: y"'),
    ],
)
def test_bare_values(value: float | str, text: str) -> None:
    assert bare(value) == text


@given(st.integers())
def test_integers_are_valid(value: int) -> None:
    assert INTEGER.fullmatch(bare(value))


@given(st.floats(allow_nan=False, allow_infinity=True))
def test_decimals_are_valid(value: float) -> None:
    assert DECIMAL.fullmatch(bare(value))


@given(st.floats(-1e11, 1e11), st.integers(1, 3))
def test_a_decimal_has_as_many_digits_as_it_needs(value: float, digits: int) -> None:
    written = decimal(value, digits)

    assert DECIMAL.fullmatch(written)
    assert float(written) == round(value, digits)
    assert written[-1] != "0" or written[-2] == "."


@given(st.text())
def test_strings_are_valid_and_bounded(text: str) -> None:
    written = string(text)

    assert STRING.fullmatch(written)
    assert len(written) <= 2 * MAX_STRING_CHARS + 2


def test_long_string_is_cut_visibly() -> None:
    assert string("x" * 300) == '"' + "x" * 237 + '..."'


def test_parameters_that_are_not_known_are_left_out() -> None:
    assert item("211", {"ms": None, "rate": 2.11, "basis": "x"}) == '211;rate=2.11;basis="x"'
    assert item("normal") == "normal"


def test_inner_list() -> None:
    assert inner_list((14.2, 19)) == "(14.2 19)"
