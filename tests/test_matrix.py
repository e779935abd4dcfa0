"""Every detector against every other one's firing case: who may speak where is written down."""

import pytest

from fakes.cases import cpu_quota_of_one_core, healthy
from fakes.firing import FIRING
from fakes.gpu_cases import gpu_case
from slowtok.detectors.case.finding import UNNAMED, Detector, Finding, Missing
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of

# (cause that was provoked, cause that may be found as well): both are true there.
ALLOWED: set[tuple[str, str]] = {
    # what compiling does to the rate of a prompt
    ("kernel-compile", "slow-prefill"),
    # it costs only where the context is long
    ("flash-attention-off", "long-context"),
    # the reason, and the split that follows from it
    ("context-oversized", "partial-offload"),
    ("model-too-big", "partial-offload"),
    ("reload-degradation", "partial-offload"),
    ("vram-held-by-others", "partial-offload"),
    # sharing each layer is slower than one card alone, because of the link
    ("pcie-link", "multi-gpu-split"),
}


def findings(cause: str) -> dict[str, Finding]:
    case = FIRING[cause]()
    found = {}
    for detector in CATALOG:
        try:
            finding = detector.detect(case)
        except Missing:
            continue
        if finding is not None and finding is not UNNAMED:
            found[cause_of(detector)] = finding
    return found


def test_every_cause_has_a_firing_case() -> None:
    assert sorted(FIRING) == sorted(cause_of(detector) for detector in CATALOG)


@pytest.mark.parametrize("detector", CATALOG, ids=cause_of)
def test_healthy_case_is_cleared_by_all_and_lacks_nothing(detector: Detector) -> None:
    assert detector.detect(healthy()) is None


@pytest.mark.parametrize("detector", CATALOG, ids=cause_of)
def test_healthy_gpu_has_no_cause_and_lacks_nothing(detector: Detector) -> None:
    at_its_power_limit = UNNAMED if cause_of(detector) == "power-cap" else None

    assert detector.detect(gpu_case()) is at_its_power_limit


@pytest.mark.parametrize("cause", sorted(FIRING))
def test_only_the_provoked_cause_and_allowed_ones_fire(cause: str) -> None:
    also = {other for provoked, other in ALLOWED if provoked == cause}

    assert set(findings(cause)) == {cause} | also


@pytest.mark.parametrize("cause", sorted(FIRING))
def test_findings_can_be_shown(cause: str) -> None:
    finding = findings(cause)[cause]

    assert finding.lost_s > 0
    assert 0 < finding.confidence <= 1
    assert 2 <= len(finding.evidence) <= 4
    for text in (finding.summary, finding.remedy):
        assert text.isascii()
        assert text.endswith(".")
        assert "\n" not in text


def test_more_threads_than_the_quota_is_named_beside_the_quota() -> None:
    case = cpu_quota_of_one_core()
    found = {cause_of(d) for d in CATALOG if d.detect(case) is not None}

    assert found == {"cpu-quota", "threads-misconfigured"}
