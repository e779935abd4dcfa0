"""Which earlier prompt a new one is compared with."""

from slowtok.detectors.case.case import Repeat
from slowtok.proxy.observe.prompts import (
    KEEP_MODELS,
    KEEP_PER_MODEL,
    KEEP_TRIES,
    MAX_AGE_S,
    MAX_PAUSE_S,
    Prompts,
)
from slowtok.proxy.stream.prompt_fingerprint import PromptFingerprint, fingerprint_prompt


def prompt(*texts: str) -> PromptFingerprint:
    roles = ("system", "user", "assistant")
    messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
    made = fingerprint_prompt({"messages": messages})
    assert made is not None
    return made


def test_first_prompt_has_nothing_to_be_compared_with() -> None:
    assert Prompts().compare("engine model", prompt("hello"), 0.0) is None


def test_compared_with_the_one_that_it_shares_most_with() -> None:
    prompts = Prompts()
    prompts.remember("a", prompt("x" * 64, "one"), 1.0)
    prompts.remember("a", prompt("y" * 640, "two"), 2.0)
    prompts.remember("a", prompt("z" * 64, "three"), 3.0)

    prefix = prompts.compare("a", prompt("y" * 640, "next"), 5.0)

    assert prefix is not None
    assert prefix.common_prefix_chars == 640
    assert prefix.previous_age_s == 3.0


def test_what_served_another_does_not_count() -> None:
    prompts = Prompts()
    prompts.remember("a", prompt("hello"), 1.0)

    assert prompts.compare("b", prompt("hello"), 2.0) is None


def test_old_prompts_do_not_count() -> None:
    prompts = Prompts()
    prompts.remember("a", prompt("hello"), 0.0)

    assert prompts.compare("a", prompt("hello"), MAX_AGE_S) is not None
    assert prompts.compare("a", prompt("hello"), MAX_AGE_S + 1) is None


def test_memory_is_bounded() -> None:
    prompts = Prompts()
    for i in range(KEEP_PER_MODEL + 1):
        prompts.remember("a", prompt(f"{i}" * 64), float(i))
    for i in range(KEEP_MODELS):
        assert prompts.compare("a", prompt("x"), 9.0) is not None
        prompts.remember(f"other {i}", prompt("hello"), 9.0)

    assert prompts.compare("a", prompt("x"), 9.0) is None


def test_oldest_of_one_model_goes_first() -> None:
    prompts = Prompts()
    for i in range(KEEP_PER_MODEL + 1):
        prompts.remember("a", prompt(f"{i:02}" * 64), float(i))

    first = prompts.compare("a", prompt("00" * 64), 9.0)
    second = prompts.compare("a", prompt("01" * 64), 9.0)

    assert first is not None
    assert second is not None
    assert (first.common_prefix_chars, second.common_prefix_chars) == (0, 128)


def test_a_beginning_that_always_changes_is_compared_within_its_conversation() -> None:
    """All of them begin with the same few characters; one more by chance says nothing."""
    prompts = Prompts()
    prompts.remember("a", prompt("cch=11\n" + "y" * 640, "mine"), 1.0)
    prompts.remember("a", prompt("cch=23456789012345\n" + "z" * 640, "another"), 2.0)

    prefix = prompts.compare("a", prompt("cch=23456789012346\n" + "y" * 640, "mine"), 3.0)

    assert prefix is not None
    assert prefix.shared_ratio > 0.5
    assert prefix.previous_age_s == 2.0


def test_other_conversations_since_are_counted() -> None:
    prompts = Prompts()
    for at_s, who in enumerate("xmyzm"):
        prompts.remember("a", prompt(who * 640), float(at_s))

    mine, first = (prompts.compare("a", prompt(who * 640, "next"), 9.0) for who in "mx")

    assert mine is not None
    assert first is not None
    assert (mine.others_since, first.others_since) == (0, 4)


def test_what_others_share_with_it_is_told() -> None:
    prompts = Prompts()
    prompts.remember("a", prompt("x" * 640, "mine"), 1.0)
    prompts.remember("a", prompt("x" * 640, "other " * 9), 2.0)

    mine = prompts.compare("a", prompt("x" * 640, "mine", "next"), 9.0)

    assert mine is not None
    assert (mine.others_since, mine.others_common_chars) == (1, 640)


def test_tries_that_were_cut_short_are_counted_until_one_is_read() -> None:
    prompts, asked = Prompts(), prompt("x" * 640, "mine")
    assert prompts.repeat("a", asked, 0.0) is None

    prompts.note_cut("a", asked, 200.0, 200.0, "client-gone")
    prompts.note_cut("a", asked, 401.0, 200.0, "timeout")

    assert prompts.repeat("a", asked, 402.0) == Repeat(count=2, spent_s=400.0, ended="timeout")
    assert prompts.repeat("a", prompt("x" * 640, "other"), 402.0) is None
    assert prompts.repeat("b", asked, 402.0) is None
    assert prompts.repeat("a", asked, 401.0 + MAX_PAUSE_S + 1) is None
    prompts.remember("a", asked, 403.0)
    assert prompts.repeat("a", asked, 404.0) is None


def test_tries_that_are_kept_are_bounded() -> None:
    prompts = Prompts()
    for i in range(KEEP_TRIES + 1):
        prompts.note_cut("a", prompt(f"{i}" * 64), float(i), 1.0, "timeout")

    assert prompts.repeat("a", prompt("0" * 64), 9.0) is None
    assert prompts.repeat("a", prompt("1" * 64), 9.0) is not None
