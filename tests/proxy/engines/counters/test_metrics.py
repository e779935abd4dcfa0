"""Reading `/metrics`: recorded pages, names of other versions, and what must not be taken for."""

import pytest

from fakes import recordings
from slowtok.proxy.engines.counters.metrics import Counters, cache_config, gain, read_counters

VLLM = recordings.unframe(recordings.load("vllm-0.32.metrics")).body
LLAMA_SERVER = recordings.unframe(recordings.load("llama-server-2026.10.metrics")).body
LABELS = 'engine="0",model_name="m"'


def page(*lines: str) -> bytes:
    return "\n".join(lines).encode()


def read(*lines: str) -> Counters:
    counters = read_counters(page(*lines))
    assert counters is not None
    return counters


def test_recorded_vllm() -> None:
    assert read_counters(VLLM) == Counters(
        running=0, waiting=0, kv_used_ratio=0, started_unix_s=1795147737.08, finished=15,
        requests=14, preemptions=0, prompt_tokens=987, cached_tokens=0,
        queue_s=0.0002818689990817802, prefill_s=11.823042323000891, decode_s=2.2863125139997464,
    )  # fmt: skip


def test_recorded_llama_server_counts_prompts_without_their_cached_part() -> None:
    assert b"llamacpp:prompt_tokens_total 3932" in LLAMA_SERVER
    assert read_counters(LLAMA_SERVER) == Counters(
        running=0, waiting=0, prompt_tokens=3932 + 428, cached_tokens=428,
        prefill_s=26.2435, decode_s=68.3901, drafted=0, accepted=0,
    )  # fmt: skip


def test_gauges_of_sglang() -> None:
    counters = read(
        "sglang:num_running_reqs 3", "sglang:num_queue_reqs 2", "sglang:token_usage 0.4"
    )

    assert (counters.running, counters.waiting, counters.kv_used_ratio) == (3, 2, 0.4)


def test_an_older_llama_server_does_not_tell_whole_prompts() -> None:
    counters = read("llamacpp:prompt_tokens_total 10", "llamacpp:requests_processing 1")

    assert (counters.prompt_tokens, counters.cached_tokens, counters.running) == (None, None, 1)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"process_start_time_seconds 1.0\npython_info 1\n", id="another program"),
        pytest.param(b"<html>not found</html>", id="a page for people"),
        pytest.param(b"vllm:num_requests_running_of_another 1\n", id="a longer name"),
        pytest.param(b"# vllm:num_requests_running 1\n", id="a comment"),
        pytest.param(b"vllm:num_requests_running NaN\n", id="no number"),
    ],
)
def test_page_without_counters(body: bytes) -> None:
    assert read_counters(body) is None


def test_line_cut_short_is_an_error() -> None:
    with pytest.raises(ValueError, match=r".*"):
        read_counters(b'vllm:num_requests_running{engine="0')


@pytest.mark.parametrize("total", ["", "_total"])
def test_both_spellings_of_a_count(total: str) -> None:
    counters = read(
        f"vllm:num_preemptions{total}{{{LABELS}}} 3",
        f"vllm:spec_decode_num_draft_tokens{total}{{{LABELS}}} 40",
        f"vllm:spec_decode_num_accepted_tokens{total}{{{LABELS}}} 30",
    )

    assert (counters.preemptions, counters.drafted, counters.accepted) == (3, 40, 30)


def test_names_of_older_versions() -> None:
    counters = read(
        f"vllm:gpu_cache_usage_perc{{{LABELS}}} 0.5",
        f"vllm:gpu_prefix_cache_hits_total{{{LABELS}}} 7",
    )

    assert (counters.kv_used_ratio, counters.cached_tokens) == (0.5, 7)


def test_old_and_new_name_on_one_page_count_once() -> None:
    counters = read(
        f"vllm:gpu_cache_usage_perc{{{LABELS}}} 0.5",
        f"vllm:kv_cache_usage_perc{{{LABELS}}} 0.5",
        f"vllm:gpu_prefix_cache_hits_total{{{LABELS}}} 7",
        f"vllm:prefix_cache_hits_total{{{LABELS}}} 7",
    )

    assert (counters.kv_used_ratio, counters.cached_tokens) == (0.5, 7)


def test_engines_of_one_page_are_added_up_but_not_what_each_has_for_itself() -> None:
    counters = read(
        *(f'vllm:num_requests_running{{engine="{n}"}} {n + 1}' for n in range(2)),
        *(f'vllm:kv_cache_usage_perc{{engine="{n}"}} 0.{n + 1}' for n in range(2)),
    )

    assert (counters.running, counters.kv_used_ratio) == (3, 0.2)


def test_gain() -> None:
    gains = gain(Counters(finished=3, drafted=1), Counters(finished=5, decode_s=1.5))

    assert gains is not None
    assert (gains["finished"], gains["drafted"], gains["decode_s"]) == (2, None, None)
    assert "running" not in gains, "a gauge gains nothing"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(Counters(finished=3), Counters(finished=2), id="a count fell"),
        pytest.param(
            Counters(finished=3, started_unix_s=1.0), Counters(finished=9, started_unix_s=2.0),
            id="another process",
        ),
    ],
)  # fmt: skip
def test_engine_started_anew_has_gained_nothing_that_is_known(
    before: Counters, after: Counters
) -> None:
    assert gain(before, after) is None


def test_recorded_cache_config() -> None:
    [config] = cache_config(VLLM)

    assert (config["num_gpu_blocks"], config["block_size"]) == ("364", "128")
    assert "num_cpu_blocks" not in config, "None is no value"
