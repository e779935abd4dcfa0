"""The four roots rest on a split or on a spill, and are found beside it without a loss twice."""

from dataclasses import replace

import pytest

from fakes import memory_cases
from fakes.cases import with_device, with_server
from fakes.firing import FIRING
from fakes.gpu_cases import GIB, gpu_case
from slowtok.detectors.analysis.placement.attribution import LIKELY_RATIO, attribute
from slowtok.detectors.analysis.placement.cost import confidence
from slowtok.detectors.analysis.placement.reasons import Root
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.diagnose import diagnose


def spilling(*, file_gib: float = 4.6, context: int = 8192) -> Case:
    """A Windows machine whose GPU fetches a part of this model over its link."""
    case = FIRING["vram-spill"]()
    file_bytes = int(file_gib * GIB)
    model = replace(case.model, file_bytes=file_bytes, read_bytes=file_bytes)
    return replace(case, model=model, server=replace(case.server, context_tokens=context))


@pytest.mark.parametrize(
    ("case", "root"),
    [
        (spilling(file_gib=25), "model-too-big"),
        (spilling(context=262_144), "context-oversized"),
    ],
)
def test_a_spill_has_roots_too(case: Case, root: Root) -> None:
    cause = attribute(case, root)

    assert cause is not None
    assert "from where the GPU fetches it" in cause.said
    found = diagnose(case).findings
    assert list(found)[:2] == [root, "vram-spill"]
    assert found["vram-spill"].lost_s == 0


def test_where_nothing_spills_or_can_there_is_no_root() -> None:
    case = with_server(spilling(file_gib=25), unified_memory=False)

    assert attribute(with_device(case, os="linux"), "model-too-big") is None
    assert attribute(gpu_case(), "model-too-big") is None


@pytest.mark.parametrize(
    "root", ["model-too-big", "context-oversized", "vram-held-by-others", "reload-degradation"]
)
def test_the_root_leads_and_the_split_costs_nothing_more(root: Root) -> None:
    diagnosis = diagnose(FIRING[root]())

    assert diagnosis.verdict == "slow"
    assert list(diagnosis.findings) == [root, "partial-offload"]
    assert diagnosis.findings["partial-offload"].lost_s == 0
    assert diagnosis.budget_ms_per_token["unexplained"] < 0.2 * sum(
        diagnosis.budget_ms_per_token.values()
    )


def test_a_root_that_the_engines_margin_makes_likely_is_believed_less() -> None:
    case = memory_cases.partial_offload()
    size = int(22.5 * GIB)
    tight = replace(
        case,
        model=replace(case.model, file_bytes=size, read_bytes=size),
        server=replace(case.server, gpu_layers=-1, context_tokens=1024),
        gpu=tuple(replace(s, processes=memory_cases.card(20_000).processes) for s in case.gpu),
    )
    cause = attribute(tight, "model-too-big")

    assert cause is not None
    assert not cause.reason.sure
    assert cause.confidence == pytest.approx(
        LIKELY_RATIO * confidence(tight, cause.placed), abs=0.01
    )
