import pytest

from fakes.cases import healthy, with_envelope, with_server, with_tokens
from fakes.engine_cases import VLLM, prefilled
from fakes.engine_cases import flash_attention_off as firing
from fakes.gpu_cases import gpu_case
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Missing
from slowtok.detectors.causes.server import flash_attention_off
from slowtok.detectors.diagnosis.diagnose import diagnose


def long_prompt(tps: float) -> Case:
    return prefilled(tps, prompt=16_000, flash_attention="off")


QUIET = [
    pytest.param(healthy(), id="healthy on a CPU"),
    pytest.param(gpu_case(), id="healthy on a GPU"),
    pytest.param(with_server(healthy(), flash_attention="off"), id="on a CPU it is no loss"),
    pytest.param(firing(9.9), id="off, and no slower than expected"),
    pytest.param(firing(30.0, prompt=300), id="short context: 0 to 4 % (cortex.llamacpp#32)"),
    pytest.param(firing(flash_attention="on"), id="slow, but it is on"),
    pytest.param(firing(flash_attention="auto"), id="the engine decides"),
    pytest.param(firing(flash_attention=None), id="a build in which it is automatic"),
    pytest.param(firing(flash_attention=None, version="b6325-00681dfc"), id="the first of them"),
    pytest.param(firing(kind="vllm"), id="vLLM has no such switch"),
    pytest.param(firing(local=False), id="another machine's engine"),
    pytest.param(long_prompt(2600.0), id="prefill as fast as it should be"),
]
FIRING = [
    pytest.param(firing(), "decode", 4.95, 0.93, "--flash-attn on", id="twice the time (#5021)"),
    pytest.param(
        firing(kind="ollama", threads=None),
        "decode",
        4.95,
        0.93,
        "OLLAMA_FLASH_ATTENTION=1",
        id="Ollama",
    ),
    pytest.param(
        firing(flash_attention=None, version="b5900-aaaaaaa"),
        "decode",
        4.95,
        0.65,
        "off, as this build leaves it unless told",
        id="a build that leaves it off",
    ),
    pytest.param(
        firing(80.0), "decode", 7.57, 0.93, "8,040 tokens", id="no more than it is known to cost"
    ),
    pytest.param(
        long_prompt(1300.0),
        "prefill",
        4.68,
        0.93,
        "prefill ran at 1300.0 tokens/s",
        id="a long prompt",
    ),
]
MISSING = [
    pytest.param(
        firing(flash_attention=None, pid=None), "whether flash attention is on", id="flags not seen"
    ),
    pytest.param(
        with_envelope(firing(), kv_bytes=None), "KV bytes read per token", id="geometry not known"
    ),
    pytest.param(
        with_envelope(firing(), expected_tps=None),
        "decode rate expected of this GPU",
        id="no expectation",
    ),
]


@pytest.mark.parametrize("case", QUIET)
def test_quiet(case: Case) -> None:
    assert flash_attention_off.detect(case) is None


@pytest.mark.parametrize(("case", "phase", "lost_s", "confidence", "said"), FIRING)
def test_fires(case: Case, phase: str, lost_s: float, confidence: float, said: str) -> None:
    finding = flash_attention_off.detect(case)

    assert finding is not None
    assert finding.phase == phase
    assert finding.lost_s == pytest.approx(lost_s, rel=0.1)
    assert finding.confidence == confidence
    assert said in f"{finding.summary} {finding.remedy}"


@pytest.mark.parametrize(("case", "fact"), MISSING)
def test_names_the_missing_fact(case: Case, fact: str) -> None:
    with pytest.raises(Missing) as missing:
        flash_attention_off.detect(case)

    assert missing.value.fact == fact


@pytest.mark.parametrize("case", [firing(), long_prompt(1300.0)])
def test_leads_the_diagnosis(case: Case) -> None:
    assert next(iter(diagnose(case).findings)) == "flash-attention-off"


def test_a_cached_prompt_has_nothing_to_compute() -> None:
    cached = with_tokens(long_prompt(1300.0), cached=15_000)

    assert flash_attention_off.detect(cached) is None


def test_vllm_is_not_asked() -> None:
    assert flash_attention_off.detect(gpu_case(server=VLLM, ms_per_token=30.0)) is None
