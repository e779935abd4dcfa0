import orjson
import pytest

from slowtok.detectors.case.machine import CpuUser, DeviceFacts, GpuFacts
from slowtok.proxy.sampling.readings import Readings


def host(at_s: float, span_s: float = 0.2, port: str = "8080") -> bytes:
    return b'{"kind":"host","at_s":%f,"span_s":%f,"port":%s}' % (at_s, span_s, port.encode())


def test_nothing_said_is_nothing_known() -> None:
    readings = Readings()

    assert readings.host_window(8080, 0, 1e9) == ()
    assert readings.gpus.window(0, 1e9) == ()
    assert readings.device == DeviceFacts()
    assert readings.processes.get(8080) is None
    assert readings.status()["cpu_ratio"] is None


def test_a_garbage_line_is_counted_and_costs_nothing_else() -> None:
    readings = Readings()
    for text in (host(1.0), b"Segmentation fault\n", host(1.2)):
        readings.take(text)

    assert len(readings.host_window(8080, 0, 2)) == 2
    assert readings.status()["unreadable_lines"] == 1
    assert readings.status()["last_unreadable"] == "Segmentation fault"


CRASH = b"""Traceback (most recent call last):
  File "loop.py", line 1, in run
    Error = ALL
NameError: name 'ALL' is not defined
Fatal Python error: _enter_buffered_busy: could not acquire lock
Python runtime state: finalizing (tstate=0x0)
<no Python frame>
"""


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (CRASH, "NameError: name 'ALL' is not defined"),
        (CRASH[CRASH.index(b"Fatal") :], "Fatal Python error: _enter_buffered_busy: could not"),
        (b"a.b.OddError\nmore\n", "a.b.OddError"),
    ],
)
def test_the_line_that_says_what_happened_is_kept(said: bytes, kept: str) -> None:
    readings = Readings()
    for text in said.splitlines():
        readings.take(text)

    assert readings.status()["last_unreadable"].startswith(kept)
    assert (readings.last_words or "").startswith(kept)
    readings.begin()
    assert readings.last_words is None
    readings.take(b"of another process")
    assert readings.status()["last_unreadable"] == "of another process"


def test_who_else_uses_the_cpu_comes_with_a_host_sample() -> None:
    readings = Readings()
    one = {"name": "cc1plus", "pid": 7, "cpu_cores": 3.5, "processes": 4}
    line = {"kind": "host", "at_s": 1.0, "span_s": 0.2, "port": 1, "others": [one]}
    readings.take(orjson.dumps(line))

    [sample] = readings.host_window(1, 0, 2)
    assert sample.others == (CpuUser(name="cc1plus", pid=7, cpu_cores=3.5, processes=4),)


def test_host_window_has_every_sample_whose_span_touches_it() -> None:
    readings = Readings()
    for at_s in (9.0, 10.0, 11.0, 12.0, 13.0):
        readings.take(host(at_s, span_s=1.0))

    window = readings.host_window(8080, 10.0, 12.5)

    assert [sample.at_s for sample in window] == [10.0, 11.0, 12.0, 13.0]


def test_ports_have_their_own_samples() -> None:
    readings = Readings()
    readings.take(host(1.0, port="8080"))
    readings.take(host(1.0, port="11434"))
    readings.take(host(1.0, port="null"))

    assert len(readings.host_window(11434, 0, 2)) == 1
    assert len(readings.host_window(None, 0, 2)) == 1
    assert readings.host_window(1, 0, 2) == ()


def test_a_port_that_is_no_longer_watched_is_forgotten() -> None:
    readings = Readings()
    readings.take(host(1.0))
    readings.take(b'{"kind":"process","port":8080,"pid":7}')
    readings.forget_other_ports((11434,))

    assert readings.host_window(8080, 0, 2) == ()
    assert readings.processes.get(8080) is None


def test_host_and_gpu_facts_come_together_in_any_order() -> None:
    facts = (
        b'{"kind":"host_facts","cpu_logical_cores":8}',
        b'{"kind":"gpus","gpus":[{"index":0,"name":"H200"}]}',
    )
    both = DeviceFacts(cpu_logical_cores=8, gpus=(GpuFacts(index=0, name="H200"),))

    for order in (facts, facts[::-1]):
        readings = Readings()
        for text in order:
            readings.take(text)
        assert readings.device == both


def test_no_gpu_library_says_why() -> None:
    readings = Readings()
    readings.take(b'{"kind":"gpus","reason":"NVML library not found"}')

    assert readings.device.gpus is None
    assert readings.device.gpus_reason == "NVML library not found"
    assert readings.status()["gpu_unavailable"] == "NVML library not found"


def test_new_host_facts_leave_the_gpus_and_why_there_are_not_more() -> None:
    readings = Readings()
    readings.take(b'{"kind":"gpus","gpus":[{"index":0}],"reason":"GPU 1: lost"}')
    readings.take(b'{"kind":"host_facts","on_battery":true}')

    assert readings.device == DeviceFacts(
        gpus=(GpuFacts(index=0),), gpus_reason="GPU 1: lost", on_battery=True
    )


def test_what_went_wrong_on_gpus_is_in_the_status() -> None:
    readings = Readings()
    assert readings.status()["gpu_errors"] is None
    readings.take(
        b'{"kind":"overhead","cpu_ratio":0.01,"gpu_errors":2,"gpu_samples_stalled":3,"gpu_hung":1}'
    )
    status = readings.status()

    assert (status["gpu_errors"], status["gpu_samples_stalled"], status["gpu_hung"]) == (2, 3, 1)


def test_what_slowed_sampling_takes_away_is_not_visible() -> None:
    readings = Readings()
    assert readings.not_visible() == []
    readings.take(
        b'{"kind":"overhead","cpu_ratio":0.009,"slowed":{"shares_s":5.0,"traffic_s":1.0}}'
    )

    (hidden,) = readings.not_visible()
    assert hidden["fact"] == "GPU use of each process during short requests"
    assert readings.status()["slowed"] == {"shares_s": 5.0, "traffic_s": 1.0}
