import pytest

from fakes.cases import healthy, with_envelope, with_phases
from fakes.cases import long_context as firing
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Finding, Missing
from slowtok.detectors.causes.server import long_context

QUIET = [
    pytest.param(healthy(), id="the context adds an eighth"),
    pytest.param(with_envelope(firing(), kv_bytes=18e6), id="just under a fifth"),
    pytest.param(with_envelope(firing(), read_bytes=0.0), id="no weights to compare with"),
]
FIRING = [
    pytest.param(
        firing(),
        5.837 * 0.5,
        "At 4000 tokens of context each token reads 100 % more",
        id="as many bytes as the weights",
    ),
    pytest.param(
        with_envelope(firing(), kv_bytes=18.5e6),
        5.837 * 0.1674,
        "that part is normal",
        id="just over a fifth",
    ),
]
MISSING = [
    pytest.param(
        with_envelope(healthy(), kv_bytes=None), "KV bytes read per token", id="KV cache not known"
    ),
    pytest.param(
        with_envelope(healthy(), read_bytes=None), "bytes read per token", id="weights not known"
    ),
    pytest.param(
        with_envelope(firing(), context_tokens=None),
        "length of the context",
        id="context not known",
    ),
    pytest.param(with_phases(firing(), decode_tps=None), "decode rate", id="no rate"),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
]


@pytest.mark.parametrize("case", QUIET)
def test_quiet(case: Case) -> None:
    assert long_context.detect(case) is None


@pytest.mark.parametrize(("case", "lost_s", "said"), FIRING)
def test_fires(case: Case, lost_s: float, said: str) -> None:
    finding = long_context.detect(case)

    assert finding is not None
    assert finding.phase == "decode"
    assert finding.lost_s == pytest.approx(lost_s, rel=0.02)
    assert said in f"{finding.summary} {finding.remedy}"


@pytest.mark.parametrize(("case", "fact"), MISSING)
def test_names_the_missing_fact(case: Case, fact: str) -> None:
    with pytest.raises(Missing) as missing:
        long_context.detect(case)

    assert missing.value.fact == fact


def detected(case: Case) -> Finding:
    finding = long_context.detect(case)
    assert finding is not None
    return finding


def test_explains_and_accuses_nobody() -> None:
    finding = detected(firing())

    assert finding.informational
