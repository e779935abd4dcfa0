import pytest

from fakes.cases import healthy, with_phases, with_server, with_tokens
from fakes.prompt_cases import cache_evicted as firing
from fakes.prompt_cases import grown, with_state
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.server import cache_evicted

PUT_AWAY = with_phases(with_server(grown(cached=0), kind="ollama"), load_s=2.0)

QUIET = [
    pytest.param(healthy(), id="the common beginning came from the cache"),
    pytest.param(grown(cached=2500, others_since=3), id="others came, to slots of their own"),
    pytest.param(grown(cached=0), id="no others came"),
    pytest.param(
        grown(cached=1500, others_since=1, others_common_chars=900),
        id="more is left than they have in common",
    ),
    pytest.param(
        with_server(
            grown(cached=300, others_since=1), kind="vllm", kv_cache_tokens=200_000, slots=None
        ),
        id="vLLM had room for both",
    ),
    pytest.param(
        with_server(grown(cached=0, others_since=3), uptime_s=10.0), id="the engine is new"
    ),
    pytest.param(
        with_server(with_phases(grown(cached=0), load_s=2.0), kind="ollama", uptime_s=10.0),
        id="Ollama was started since",
    ),
    pytest.param(with_tokens(firing(), cached=None), id="not told"),
]
FIRING = [
    pytest.param(firing(), "3 prompts of others", "--parallel 4", id="more than slots"),
    pytest.param(
        grown(cached=700, others_since=1, others_common_chars=3000),
        "gives a prompt to the slot most like it",
        "--slot-prompt-similarity",
        id="a slot that began alike",
    ),
    pytest.param(
        with_server(grown(cached=0, others_since=2), kind="vllm", kv_cache_tokens=6000),
        "in a KV cache of 6,000 tokens",
        "--gpu-memory-utilization",
        id="vLLM's cache is too small for three",
    ),
    pytest.param(
        with_server(grown(cached=0, others_since=1), kind="ollama", slots=1),
        "1 prompt of another conversation came in between and took their place in its one slot",
        "OLLAMA_NUM_PARALLEL=2",
        id="Ollama's only slot",
    ),
    pytest.param(PUT_AWAY, "had put the model away", "OLLAMA_KEEP_ALIVE", id="keep_alive"),
    pytest.param(
        with_state(grown(cached=0, others_since=2)), "in its 2 slots", "--parallel 3", id="a state"
    ),
]


@pytest.mark.parametrize("case", QUIET)
def test_quiet(case: Case) -> None:
    assert cache_evicted.detect(case) is None


@pytest.mark.parametrize(("case", "why", "remedy"), FIRING)
def test_fires(case: Case, why: str, remedy: str) -> None:
    finding = cache_evicted.detect(case)

    assert finding is not None
    assert finding.phase == "prefill"
    assert why in finding.summary
    assert remedy in finding.remedy
