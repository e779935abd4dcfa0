import pytest

from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuProcess, GpuSample, HostSample
from slowtok.proxy.sampling.protocol import (
    BadLine,
    EdgeLine,
    GpusLine,
    HostLine,
    ProcessFacts,
    parse_line,
)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"Traceback (most recent call last):\n",
        b"\xff\xfe\n",
        b"[1, 2]\n",
        b'"host"\n',
        b"null\n",
        b"{}\n",
        b'{"kind": "weather"}\n',
        b'{"kind": ["host"]}\n',
        b'{"kind": "host", "at_s": 1}\n',
        b'{"kind": "host", "at_s": 1, "span_s": 1, "unheard_of": 1}\n',
        b'{"kind": "host", "at_s": "1", "span_s": 1}\n',
        b'{"kind": "gpu", "at_s": 1, "index": 0, "processes": 3}\n',
        b'{"kind": "gpu", "at_s": 1, "index": 0, "power_source": "sun"}\n',
        b'{"kind": "gpu", "at_s": 1, "index": 0, "busy_ratio": "1"}\n',
        b'{"kind": "process", "port": 1, "children": [1]}\n',
        b'{"kind": "edge"}\n',
        b'{"kind": "edge", "at_s": "1"}\n',
    ],
)
def test_garbage_is_one_kind_of_error(text: bytes) -> None:
    with pytest.raises(BadLine):
        parse_line(text)


def test_what_is_not_in_the_line_is_unknown() -> None:
    line = parse_line(b'{"kind":"host","at_s":10.5,"span_s":0.2,"port":8080,"cpu_cores":2}\n')

    assert line == HostLine(port=8080, sample=HostSample(at_s=10.5, span_s=0.2, cpu_cores=2))


def test_gpu_with_processes() -> None:
    line = parse_line(
        b'{"kind":"gpu","at_s":1.0,"index":0,"busy_ratio":0.5,'
        b'"processes":[{"pid":7,"memory_bytes":1024,"name":"ollama","is_server":true}]}'
    )

    process = GpuProcess(pid=7, name="ollama", memory_bytes=1024, is_server=True)
    assert line == GpuSample(at_s=1.0, index=0, busy_ratio=0.5, processes=(process,))


def test_no_processes_is_not_the_same_as_not_looked() -> None:
    looked = parse_line(b'{"kind":"gpu","at_s":1.0,"index":0,"processes":[]}')

    assert looked == GpuSample(at_s=1.0, index=0, processes=())


def test_unmapped_port() -> None:
    line = parse_line(b'{"kind":"process","port":8080,"unmapped":"docker-proxy"}')

    assert line == ProcessFacts(port=8080, unmapped="docker-proxy")


def test_host_facts() -> None:
    line = parse_line(b'{"kind":"host_facts","cpu_physical_cores":2,"ram_bytes":1024}')

    assert line == DeviceFacts(cpu_physical_cores=2, ram_bytes=1024)


def test_gpu_fields_that_are_no_numbers() -> None:
    line = parse_line(
        b'{"kind":"gpu","at_s":1.0,"index":0,"power_source":"battery","vgpu_licensed":false,'
        b'"processes":[{"pid":7,"is_server":null}]}'
    )

    process = GpuProcess(pid=7, is_server=None)
    assert line == GpuSample(
        at_s=1.0, index=0, power_source="battery", vgpu_licensed=False, processes=(process,)
    )


def test_gpu_facts_with_what_is_absent() -> None:
    line = parse_line(b'{"kind":"gpus","gpus":[{"index":0,"absent":{"xid":"not told"}}]}')

    facts = GpuFacts(index=0, absent={"xid": "not told"})
    assert line == GpusLine(gpus=(facts,), reason=None)


def test_an_edge() -> None:
    assert parse_line(b'{"kind":"edge","at_s":2.5}') == EdgeLine(at_s=2.5)
