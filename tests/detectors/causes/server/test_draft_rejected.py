from dataclasses import replace

import pytest

from fakes.cases import case, with_envelope, with_server, with_tokens
from fakes.cause_tests import fires, lacks, quiet
from fakes.engine_cases import draft_rejected as firing
from fakes.gpu_cases import SERVER, gpu_case
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import EngineActivity, ModelFacts
from slowtok.detectors.causes.server import draft_rejected

QWEN_30B_A3B = ModelFacts(
    name="qwen3:30b-a3b",
    quantisation="Q4_K_M",
    file_bytes=18_560_000_000,
    read_bytes=1_920_000_000,
    parameters=30_530_000_000,
    layers=48,
    experts=128,
    experts_used=8,
    kv_bytes_per_token=98_304.0,
    bits_per_weight=4.86,
)

PLAIN_MS = 7.86  # what the healthy case's card gives for its model without drafts


def counted(*, alone: bool | None) -> Case:
    """Counters of /metrics instead of the reply's own timings (vLLM)."""
    before = with_server(firing(drafted=None, accepted=None), kind="vllm", flash_attention=None)
    activity = EngineActivity(span_s=3.0, alone=alone, drafted=1378, accepted=96)
    return replace(before, activity=activity)


def of_experts(*, drafted: int, accepted: int, ms_per_token: float = 20.0) -> Case:
    """A model with 128 experts of which a token reads 8, and four drafts a step."""
    case = gpu_case(
        ms_per_token=ms_per_token,
        completion=214,
        model=QWEN_30B_A3B,
        server=replace(SERVER, speculative=True),
    )
    return with_tokens(case, drafted=drafted, accepted=accepted)


QUIET = [
    pytest.param(
        with_tokens(firing(ms_per_token=20.0), drafted=320, accepted=134, completion=214),
        id="42 % taken of a dense model, whose checks cost too little to lose by",
    ),
    pytest.param(
        of_experts(drafted=320, accepted=134, ms_per_token=5.0),
        id="the same with experts, and quicker than without",
    ),
    pytest.param(
        with_tokens(gpu_case(server=replace(SERVER, speculative=True)), drafted=900, accepted=90),
        id="few taken, but no slower than without",
    ),
    pytest.param(
        firing(drafted=300, accepted=83, ms_per_token=PLAIN_MS * 0.92),
        id="llama.cpp#28196: 0.28 taken of few, and faster than without",
    ),
    pytest.param(firing(drafted=120, accepted=80), id="slow, but most of them were taken"),
    pytest.param(
        firing(drafted=60, accepted=54),
        id="llama.cpp#25908: 0.9 taken and slow all the same, which is another fault",
    ),
    pytest.param(firing(drafted=20, accepted=0), id="too few to tell"),
    pytest.param(
        with_server(with_tokens(firing(), drafted=None, accepted=None), speculative=False),
        id="slow, and nothing was drafted",
    ),
]
FIRING = [
    pytest.param(firing(), 1.42, 0.93, "only 96 (7 %)", id="96 of 1,378"),
    pytest.param(firing(), 1.42, 0.93, "--spec-draft-n-max 2", id="63 drafts a step are too many"),
    pytest.param(
        firing(ms_per_token=60.0),
        2.50,
        0.93,
        "--spec-draft-p-min 0.75",
        id="no more than drafts are known to cost",
    ),
    pytest.param(
        with_server(firing(), speculative=None), 1.42, 0.93, "without drafts", id="flag not seen"
    ),
    pytest.param(
        firing(drafted=3472, accepted=12),
        1.42,
        0.93,
        "only 12 (0 %)",
        id="12 of 3,472: looked up in the text, they cost less than drafts of a model",
    ),
    pytest.param(
        firing(drafted=300, accepted=62, ms_per_token=13.0),
        0.22,
        0.56,
        "(21 %)",
        id="drafts of the usual cost would have paid",
    ),
    pytest.param(
        of_experts(drafted=320, accepted=134),
        0.88,
        0.56,
        "(42 %)",
        id="42 % taken of a model with experts: a step reads many more of them",
    ),
    pytest.param(counted(alone=True), 1.42, 0.86, "num_speculative_tokens to 2", id="by counters"),
    pytest.param(
        with_tokens(
            with_server(case(ms_per_token=16.0), speculative=True), drafted=800, accepted=160
        ),
        4.21,
        0.93,
        "20 %",
        id="on a CPU checking costs as much as generating",
    ),
    pytest.param(
        with_server(firing(), kind="sglang"), 1.42, 0.93, "draft at most 2 tokens", id="SGLang"
    ),
]
MISSING = [
    pytest.param(firing(drafted=None, accepted=None), "drafted and accepted tokens", id="not told"),
    pytest.param(counted(alone=False), "drafted and accepted tokens", id="counted for all"),
    pytest.param(
        with_envelope(firing(), expected_tps=None, decode=None),
        "decode rate expected without drafts",
        id="no expectation",
    ),
]


test_quiet = quiet(draft_rejected, QUIET)
test_fires = fires(draft_rejected, "lost_s confidence said", FIRING, phase="decode", rel=0.1)
test_names_the_missing_fact = lacks(draft_rejected, MISSING)
