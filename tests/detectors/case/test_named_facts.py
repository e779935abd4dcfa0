"""Each fact that a detector can miss has its words on how to make it visible, and no other has."""

import ast
import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.cases import healthy, with_gpu
from slowtok.detectors.case.case import Case, Envelope, Phases, Timeline
from slowtok.detectors.case.engine import ModelFacts
from slowtok.detectors.case.finding import Detector
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuSample
from slowtok.detectors.case.named_facts import FIELDS, HOW_TO_ENABLE, NAMES, WHO_HAS, how_to_enable
from slowtok.detectors.diagnosis.catalog import CATALOG
from slowtok.detectors.diagnosis.diagnose import diagnose

ROOT = Path(__file__).resolve().parents[3]
PHASES_ASKED = ("decode", "prefill")


def facts_in(source: str) -> Iterator[str]:
    """Yield the names of facts in `need(value, name)`; a phase in a name gives one each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "need":
            name = node.args[1]
            if isinstance(name, ast.Constant):
                yield str(name.value)
            elif isinstance(name, ast.JoinedStr):
                for phase in PHASES_ASKED:
                    parts = (getattr(part, "value", None) for part in name.values)
                    yield "".join(part if isinstance(part, str) else phase for part in parts)


def asked_for() -> set[str]:
    return {
        fact
        for path in (ROOT / "detectors").rglob("*.py")
        for fact in facts_in(path.read_text(encoding="utf-8"))
    }


def test_facts_that_detectors_ask_for_are_the_ones_explained() -> None:
    assert asked_for() == set(HOW_TO_ENABLE)


@pytest.mark.parametrize("fact", sorted(HOW_TO_ENABLE))
def test_words_say_something(fact: str) -> None:
    words = how_to_enable(fact)

    assert words.isascii()
    assert "\n" not in words
    assert not words.endswith(".")


def test_unknown_fact_has_words_too() -> None:
    assert how_to_enable("the weather") == "slowtok knows no way to make it visible"


def gpu_case(*gpus: GpuFacts, **device: Any) -> Case:
    return replace(with_gpu(healthy()), device=DeviceFacts(gpus=gpus, **device))


def test_what_a_gpu_cannot_give_is_told_with_its_reason() -> None:
    absent = {"busy_ratio": "not supported by this GPU or driver"}
    one = gpu_case(GpuFacts(index=0, name="RTX 3090", absent=absent))
    two = gpu_case(GpuFacts(index=0), GpuFacts(index=1, absent=absent))

    assert how_to_enable("GPU utilisation", one) == (
        "not supported by this GPU or driver; slices of a GPU (MIG) do not report it"
    )
    assert how_to_enable("GPU utilisation", two).startswith("GPU 1: not supported")
    first = replace(two, server=replace(two.server, gpu_indices=(0,)))
    assert how_to_enable("GPU utilisation", first) == HOW_TO_ENABLE["GPU utilisation"]


def test_container_is_told_how_to_see_processes() -> None:
    private = gpu_case(GpuFacts(index=0), private_pids=True)

    assert "--pid=host" in how_to_enable("processes on the GPU", private)
    assert how_to_enable("processes on the GPU", private) != HOW_TO_ENABLE["processes on the GPU"]
    assert how_to_enable("GPU utilisation", private) == HOW_TO_ENABLE["GPU utilisation"]


@pytest.mark.parametrize("gpus", [None, ()])
def test_reason_for_no_gpu_stands_before_the_remedy(gpus: tuple[()] | None) -> None:
    device = DeviceFacts(gpus=gpus, gpus_reason="NVML library not found")
    words = how_to_enable("GPU utilisation", replace(healthy(), device=device))

    assert words == f"NVML library not found; {HOW_TO_ENABLE['GPU utilisation']}"


def test_gpu_that_is_there_needs_no_library_for_its_samples() -> None:
    words = how_to_enable("GPU samples during decode", gpu_case(GpuFacts(index=0)))

    assert words == how_to_enable("host samples during decode")


def test_facts_of_gpus_are_fields_of_samples() -> None:
    fields = {field.name for field in dataclasses.fields(GpuSample)}

    assert set(FIELDS) <= set(HOW_TO_ENABLE)
    assert set(FIELDS.values()) <= fields | {""}
    assert set(NAMES) == fields - {"at_s", "index"}
    assert set(WHO_HAS) <= set(NAMES)


def blind() -> Case:
    """A request of which only the times on the way through are known."""
    timeline = Timeline(
        request_id="x", path="/v1/completions", stream=True, started_unix_s=0.0, accepted_at_s=1.0
    )
    return Case(timeline=timeline, phases=Phases(source="stream", total_s=1.0))


@pytest.mark.parametrize(
    "case",
    [
        blind(),
        Case(timeline=blind().timeline, phases=healthy().phases),
        Case(timeline=healthy().timeline, phases=healthy().phases, device=DeviceFacts(gpus=())),
        Case(timeline=healthy().timeline, phases=blind().phases, model=ModelFacts(name="x")),
    ],
    ids=["nothing", "phases", "no GPU", "tokens"],
)
@pytest.mark.parametrize("detector", CATALOG)
def test_no_detector_breaks_where_facts_are_absent(detector: Detector, case: Case) -> None:
    diagnosis = diagnose(case, catalog=(detector,))

    assert diagnosis.failed == {}
    assert set(diagnosis.missing.values()) <= set(HOW_TO_ENABLE)


def test_a_model_file_that_was_read_is_not_asked_for() -> None:
    reason = "the RAM bandwidth is not known yet"
    case = healthy()
    unmeasured = replace(case, envelope=Envelope(because=(reason,)))
    unread = replace(unmeasured, model=ModelFacts())

    assert how_to_enable("KV bytes read per token", unmeasured) == reason
    assert "model file" in how_to_enable("KV bytes read per token", unread)
