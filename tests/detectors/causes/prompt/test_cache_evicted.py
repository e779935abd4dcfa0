import pytest

from fakes.cases import with_envelope, with_phases, with_server, with_tokens
from fakes.cause_tests import fires, quiet
from fakes.prompt_cases import cache_evicted as firing
from fakes.prompt_cases import grown, with_state
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.prompt import cache_evicted

PUT_AWAY = with_phases(with_server(grown(cached=0), kind="ollama"), load_s=2.0)


def by_time(*, others_since: int, slots: int) -> Case:
    """An Ollama that tells nothing of its cache, and took nearly as long as for all of it."""
    untold = with_tokens(
        grown(cached=0, others_since=others_since, others_common_chars=0), cached=None
    )
    took_s, tokens = untold.phases.prefill_s or 0.0, untold.timeline.tokens.prompt or 0
    held = with_envelope(untold, prefill=None, expected_prefill_tps=0.95 * tokens / took_s)
    return with_server(held, kind="ollama", slots=slots)


QUIET = [
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
    pytest.param(by_time(others_since=1, slots=4), id="not told, and there was a slot for each"),
]
FIRING = [
    pytest.param(
        firing(), "3 prompts of other conversations", "--parallel 4", id="more than slots"
    ),
    pytest.param(
        grown(cached=700, others_since=1, others_common_chars=3000),
        "gives a prompt to the slot most like it",
        "Raise --slot-prompt-similarity to 0.5 (its default is 0.1)",
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
    pytest.param(
        by_time(others_since=1, slots=1),
        "1 prompt of another conversation came in between",
        "OLLAMA_NUM_PARALLEL=2",
        id="Ollama's only slot, by the time that the prompt took",
    ),
    pytest.param(PUT_AWAY, "had unloaded the model", "OLLAMA_KEEP_ALIVE", id="keep_alive"),
    pytest.param(
        with_state(grown(cached=0, others_since=2)), "in its 2 slots", "--parallel 3", id="a state"
    ),
    pytest.param(
        with_server(grown(cached=0, others_since=3), kind="sglang", slots=None),
        "and took their place; ",
        "--mem-fraction-static",
        id="SGLang, whose slots are not known",
    ),
    pytest.param(
        with_server(grown(cached=0, others_since=3), kind="openai", slots=None),
        "and took their place; ",
        "a slot, or cache, for each conversation",
        id="an engine of which no setting is known",
    ),
]


test_quiet = quiet(cache_evicted, QUIET)
test_fires = fires(cache_evicted, "summary remedy", FIRING, phase="prefill")
