"""The status for human eyes: everything that is known, nothing that is not, whatever its shape."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from slowtok.proxy.cli.render.overview import MAX_LISTED, fact, overview, setup_words

GPU = {
    "index": 0,
    "name": "NVIDIA GeForce RTX 3090",
    "total_bytes": 24 * 2**30,
    "bandwidth_bytes_per_s": 936e9,
    "absent": {"dram_busy_ratio": "needs Hopper"},
    "driver": None,
    "power_limit_w": 120.4,
    "vram": {"free_bytes": 2**34, "others": [{"name": "Xorg", "pid": 12345, "bytes": 2**30}]},
}
ENGINE = {
    "kind": "llama-server",
    "name": "big",
    "url": "http://127.0.0.1:8080",
    "version": "b1",
    "answers": True,
    "context_tokens": 4096,
    "models": [{"name": "/m.gguf", "path": "/m.gguf", "digest": "0123456789abcdef" * 4}],
}
STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "listen": "127.0.0.1:4141",
    "engines": [ENGINE],
    "gpus": [GPU],
    "machine": {"cpu_physical_cores": 8, "ram_bytes": 2**35, "gpus_reason": "as not visible"},
    "not_visible": [{"fact": "RAM bandwidth", "why": "not measured yet"}],
    "baselines": [{"setup": "decode | cpu | m", "count": 3, "median_tps": 0.95}],
    "overhead": {
        "proxy": {"cpu_ratio": 0.01, "resident_bytes": 2**26},
        "sampling": {"alive": True, "cpu_ratio": 0.002, "pid": 7, "restarts": 0, "failed": {}},
        "diagnose_ms_per_request": None,
    },
    "counts": {"requests": 1200, "in_flight": 1, "failures": {}, "log_lines_lost": 0},
}


def shown(status: Any, width: int = 200) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(overview(status))
    return [text.rstrip() for text in captured.get().splitlines()]


def test_start_of_an_engine_is_shown_once() -> None:
    engine = {"url": "http://a", "uptime_s": 59.0, "started_unix_s": 1.8e9}

    assert "uptime 59 s" in "\n".join(shown({"engines": [engine]}))
    assert "started" not in "\n".join(shown({"engines": [engine]}))


def test_everything_that_is_known() -> None:
    assert shown(STATUS) == [
        "slowtok      0.1.0 at 127.0.0.1:4141, 1,200 requests, 1 in flight",
        "engine       big: llama-server b1 at http://127.0.0.1:8080",
        "             context 4,096 tokens",
        "  model      /m.gguf  digest 01234567...",
        "GPU 0        NVIDIA GeForce RTX 3090",
        (
            "             total 24.0 GiB, bandwidth 936.0 GB/s, power limit 120 W,"
            " VRAM: free 16.0 GiB, others (name Xorg, pid 12345, 1.0 GiB)"
        ),
        "             does not tell dram busy ratio: needs Hopper",
        "machine      CPU physical cores 8, RAM 32.0 GiB",
        "learned      1 setup, 3 healthy requests",
        "             decode, CPU, m: 3 of 3 healthy at 0.95 tokens/s",
        "not visible  RAM bandwidth: not measured yet",
        "own cost     proxy: CPU 1 %, resident 64 MiB",
        "             sampling: CPU 0.2 %",
        "failures     none",
    ]


def test_nothing_is_known() -> None:
    assert shown({}) == [
        "slowtok      (not installed) at ?",
        "engine       none found yet; looked at nothing",
        "failures     none",
    ]


def test_trouble_is_named() -> None:
    counts = {"failures": {"diagnosis": 2}, "log_lines_lost": 3}
    sampling = {"alive": False, "restarts": 4, "failed": {"nvml": "GpuLost"}}
    status = {"counts": counts, "overhead": {"sampling": sampling}, "engines": [{"answers": False}]}
    said = shown(status)

    assert said[-1] == (
        "failures     the sampling process does not run, diagnosis 2, log lines lost 3,"
        " sampling restarts 4, sampling failed: nvml GpuLost"
    )
    assert "engine       engine at ?, does not answer" in said


def test_way_to_see_more_is_told() -> None:
    hidden = {"fact": "KV cache", "why": "no /metrics", "how_to_enable": "start with --metrics"}

    assert "not visible  KV cache: no /metrics; start with --metrics" in shown(
        {"not_visible": [hidden]}
    )


def test_what_a_newer_version_tells_is_shown_too() -> None:
    assert "also         drift: slower 18 %" in shown({"drift": {"slower_ratio": 0.18}})


def test_long_lists_are_cut() -> None:
    setups = [{"setup": str(i), "count": 1} for i in range(20)]
    models = [{"name": f"m{i}"} for i in range(20)]
    said = shown({"baselines": setups, "engines": [{"models": models}]})

    assert said.count("             and 12 more; --json lists them") == 2
    assert len(said) < 2 * MAX_LISTED + 10


@pytest.mark.parametrize("width", [20, 40, 79])
def test_narrow_terminals(width: int) -> None:
    said = shown(STATUS, width)

    assert max(len(text) for text in said) <= width
    assert "GeForce" in "".join(text[13:] for text in said)


@pytest.mark.parametrize("odd", [5, "x", [5], {"a": 5}, [None], [[]]])
@pytest.mark.parametrize("name", sorted(STATUS))
def test_member_of_another_shape_costs_only_itself(name: str, odd: Any) -> None:
    said = shown({**STATUS, name: odd})

    assert any(text.startswith("failures") for text in said)
    assert len(said) >= 8


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(STATUS)), JSON_VALUES))
def test_no_status_can_raise_or_steer_the_terminal(status: Any) -> None:
    said = shown(status)

    assert all(c.isprintable() for text in said for c in text)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ram_bytes", 0, "RAM 0 MiB"),
        ("ram_bytes", None, ""),
        ("free_bytes", 3 * 2**29, "free 1.5 GiB"),
        ("cpu_ratio", 0.004, "CPU 0.4 %"),
        ("sm_clock_mhz", 1905, "SM clock 1,905 MHz"),
        ("tick_p50_s", 0.0007, "tick p50 0.7 ms"),
        ("uptime_s", 59.0, "uptime 59 s"),
        ("uptime_s", 7200.0, "uptime 2 h"),
        ("uptime_s", 200_000.0, "uptime 2 days"),
        ("bytes", 2**30, "1.0 GiB"),
        ("pid", 12345, "pid 12345"),
        ("parameters", 134_515_008, "parameters 134,515,008"),
        ("speculative", False, "speculative no"),
        ("gpu_indices", [0, 1], "GPU indices 0, 1"),
        ("failed", {}, ""),
    ],
)
def test_facts_are_told_in_their_units(name: str, value: Any, words: str) -> None:
    assert fact(name, value) == words


def test_an_engine_that_is_gone_says_since_when() -> None:
    gone = {**ENGINE, "answers": False, "gone_since": "2026-11-20T12:00:00.000+00:00"}
    said = shown({**STATUS, "engines": [gone, {**ENGINE, "answers": False}]})

    first, second = (text for text in said if "llama-server" in text)
    assert re.search(r"8080, does not answer, gone since \d\d:00:00$", first)
    assert second.endswith("8080, does not answer"), "it never did"


def test_days_are_a_line_for_each_setup() -> None:
    days = [
        {"setup": setup, "day": f"2026-11-{day}", "count": 1, "median_tps": 9.5}
        for setup in ("decode | cpu", "prefill | cpu")
        for day in range(10, 19)
    ]
    said = [text for text in shown({"baselines_by_day": days}) if "11-18" in text]

    assert len(said) == 2
    assert said[0].startswith("by day       decode, CPU: 11-12 9.5/s, 11-13 9.5/s, ")
    assert said[0].endswith("11-18 9.5/s (7 requests)")


def test_whether_a_model_fits_is_said_in_words() -> None:
    fits = {"model": "m", "state": "ok", "said": "m: weights 94 MiB, in RAM", "room_bytes": 2**34}
    warn = {"model": "m", "state": "warn", "said": "m: 3 of 30 layers in RAM", "advice": "less"}

    assert shown({"engines": [{**ENGINE, "fit": [fits, warn]}]})[-3:-1] == [
        "  fit        m fits; weights 94 MiB, in RAM",
        "  fit        m: costs speed; 3 of 30 layers in RAM; what to do: less",
    ]


def test_settings_of_gpus_are_not_told_of_an_engine_without_one() -> None:
    on_cpu = {**ENGINE, "gpu_layers": 0, "kv_on_gpu": True, "split_mode": "layer"}
    said = "\n".join(shown({"engines": [{**on_cpu, "unmapped": "no listener"}]}))

    assert "GPU layers 0" in said
    assert "KV on GPU" not in said
    assert "process not known (no process was seen to listen at its port)" in said
    assert "KV on GPU yes" in "\n".join(shown({"engines": [{**on_cpu, "gpu_layers": 5}]}))


def test_where_a_bandwidth_is_from_is_one_word() -> None:
    machine = {"ram_bandwidth_bytes_per_s": 14.5e9, "ram_bandwidth_source": "measured"}
    beside = {**machine, "ram_bandwidth_how": "measured while other programs used the cores"}

    assert "RAM bandwidth 14.5 GB/s, RAM bandwidth measured" in shown({"machine": machine})[2]
    assert "source" not in shown({"machine": beside})[2]
    assert "RAM bandwidth measured while other programs" in shown({"machine": beside})[2]


def test_host_is_told_in_words() -> None:
    host = {
        "cpu_cores": 4,
        "cpu_busy_cores": 3.5,
        "server_cpu_cores": 1.5,
        "server_run_delay_cores": 0.732,
        "psi_cpu_some_ratio": 0.94,
        "psi_io_full_ratio": 0.0,
    }

    assert shown({"host": host})[2] == (
        "now          3.5 of 4 cores busy, the engine uses 1.5, its threads wait for 0.732 more,"
        " some process waits for the CPU 94 % of the time"
    )


def test_trouble_with_gpus_is_told_where_there_are_gpus() -> None:
    status = {"overhead": {"sampling": {"tick_p50_s": 0.001, "missed_ticks": 0, "gpu_hung": 1}}}

    assert shown(status)[2] == "own cost     sampling: a sample takes 1 ms"
    assert "GPU drivers that hang: 1" in "\n".join(shown({**status, "gpus": [GPU]}))


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (
            "decode | cpu | m | llama-server | kv f16 | ctx 1k-2k | alone",
            (
                "decode, CPU, m, llama-server, KV cache f16, 1k to 2k tokens of context,"
                " one request at a time"
            ),
        ),
        (
            "prefill | GPU-1 | m | vllm | kv f16 | prompt ? | 3-4 | speculative",
            (
                "prefill, GPU-1, m, vllm, KV cache f16, prompt not known, 3 to 4 requests at once,"
                " speculative decoding"
            ),
        ),
        (
            "decode | cpu | 123456789 | vllm | kv f16 | ctx ? | 2",
            "decode, CPU, 123456789, vllm, KV cache f16, context not known, 2 requests at once",
        ),
    ],
)
def test_setups_are_told_in_words(setup: str, words: str) -> None:
    assert setup_words(setup) == words
