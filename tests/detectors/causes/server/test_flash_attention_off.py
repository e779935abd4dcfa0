import pytest

from fakes.cases import healthy, with_envelope, with_server, with_tokens
from fakes.cause_tests import fires, lacks, quiet
from fakes.engine_cases import VLLM, prefilled
from fakes.engine_cases import flash_attention_off as firing
from fakes.gpu_cases import gpu_case
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.server import flash_attention_off
from slowtok.detectors.diagnosis.diagnose import diagnose


def long_prompt(tps: float) -> Case:
    return prefilled(tps, prompt=16_000, flash_attention="off")


QUIET = [
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
        "off, which is the default of this build",
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


test_quiet = quiet(flash_attention_off, QUIET)
test_fires = fires(flash_attention_off, "phase lost_s confidence said", FIRING, rel=0.1)
test_names_the_missing_fact = lacks(flash_attention_off, MISSING)


def test_leads_the_diagnosis_of_a_long_prompt() -> None:
    assert next(iter(diagnose(long_prompt(1300.0)).findings)) == "flash-attention-off"


def test_a_cached_prompt_has_nothing_to_compute() -> None:
    cached = with_tokens(long_prompt(1300.0), cached=15_000)

    assert flash_attention_off.detect(cached) is None


def test_vllm_is_not_asked() -> None:
    assert flash_attention_off.detect(gpu_case(server=VLLM, ms_per_token=30.0)) is None
