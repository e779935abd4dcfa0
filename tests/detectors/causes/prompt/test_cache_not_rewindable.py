import pytest

from fakes.cases import with_server, with_tokens
from fakes.cause_tests import fires, found, missing_fact, quiet
from fakes.prompt_cases import cache_not_rewindable as firing
from fakes.prompt_cases import changed_late, grown, with_state
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.prompt import cache_not_rewindable


def with_window(before: Case, **server: object) -> Case:
    """The case on a model whose layers see 1,024 tokens."""
    return with_server(with_state(before, state_bytes=0, kv_window_tokens=1024), **server)


QUIET = [
    pytest.param(changed_late(cached=0), id="plain attention: something else lost it"),
    pytest.param(with_state(grown(cached=2500)), id="it goes on where the state ended"),
    pytest.param(with_state(changed_late(cached=2400)), id="a checkpoint just before the change"),
    pytest.param(with_window(changed_late(cached=0), swa_full=True), id="--swa-full"),
    pytest.param(
        with_window(changed_late(cached=0), kind="vllm"), id="vLLM keeps the blocks of all layers"
    ),
    pytest.param(
        with_state(changed_late(cached=0, others_since=2)), id="others came in both slots"
    ),
    pytest.param(
        with_state(changed_late(cached=0, common_prefix_chars=1000)), id="changed at the beginning"
    ),
    pytest.param(
        with_server(with_state(grown(cached=0)), kind="openai"),
        id="an engine of which only the template can be mended",
    ),
]
FIRING = [
    pytest.param(firing(), "a state (40 MiB a sequence)", "--ctx-checkpoints", id="recurrent"),
    pytest.param(
        with_window(changed_late(cached=0)), "keeps 1,024 tokens", "--swa-full", id="a window"
    ),
    pytest.param(
        with_server(with_state(changed_late(cached=528)), kind="vllm", cache_block_tokens=528),
        "a state",
        "blocks of 528 tokens",
        id="vllm#40696: blocks of 528 tokens",
    ),
    pytest.param(
        with_state(changed_late(cached=700)), "a state", "--ctx-checkpoints", id="a far checkpoint"
    ),
    pytest.param(
        with_server(with_state(grown(cached=0)), template_habits=("thinking",)),
        "leaves out earlier thoughts",
        "send the reasoning back",
        id="it only grew, and the template leaves thoughts out",
    ),
    pytest.param(
        with_state(changed_late(cached=0, others_since=1)),
        "a state",
        "--ctx-checkpoints",
        id="another came, to the other slot",
    ),
    pytest.param(
        with_state(grown(cached=0)),
        "rendered differently from how they were generated",
        "send the reasoning back",
        id="it only grew, and the template is not known to leave anything out",
    ),
    pytest.param(
        with_window(changed_late(cached=0), kind="ollama"),
        "keeps 1,024 tokens",
        "Ollama has no setting for it",
        id="a window, in Ollama",
    ),
    pytest.param(
        with_server(firing(), kind="vllm"),
        "a state",
        "ends of large blocks",
        id="vLLM, block not told",
    ),
    pytest.param(
        with_server(firing(), kind="openai"),
        "a state",
        "a newer version of the engine",
        id="an engine of which no setting is known",
    ),
]


test_quiet = quiet(cache_not_rewindable, QUIET)
test_fires = fires(cache_not_rewindable, "summary remedy", FIRING, phase="prefill")


def test_the_cost_is_what_the_recomputed_tokens_took() -> None:
    finding = found(cache_not_rewindable, firing())

    assert finding.lost_s == pytest.approx(4.0 * 0.9)


def test_names_the_missing_fact() -> None:

    assert (
        missing_fact(cache_not_rewindable, with_tokens(firing(), cached=None))
        == "prompt tokens taken from the cache"
    )
