"""What a decode proves of the RAM: never more than it read."""

from dataclasses import replace

import pytest

from fakes.cases import healthy, with_envelope, with_host, with_server, with_timeline
from slowtok.detectors.analysis.host_window import ram_read_bytes_per_s
from slowtok.detectors.case.case import Case, Tokens

GIB = 1 << 30


def large() -> Case:
    return with_envelope(healthy(), read_bytes=2 * GIB, kv_bytes=GIB)


def test_a_decode_on_the_cpu_has_read_weights_and_cache_for_each_token() -> None:
    case = large()

    assert case.phases.decode_tps is not None
    assert ram_read_bytes_per_s(case) == case.phases.decode_tps * 3 * GIB


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(healthy(), id="caches hold a small model"),
        pytest.param(with_server(large(), speculative=True), id="drafts"),
        pytest.param(with_server(large(), local=False), id="an engine elsewhere"),
        pytest.param(
            with_server(with_host(large(), server_cpu_cores=1.0), gpu_layers=None),
            id="a GPU that is not visible: the CPU only waits",
        ),
        pytest.param(
            with_timeline(large(), tokens=Tokens(prompt=240, completion=8)), id="a few tokens"
        ),
        pytest.param(with_envelope(large(), read_bytes=None), id="bytes are not known"),
        pytest.param(
            replace(large(), phases=replace(large().phases, decode_tps=None)), id="no rate"
        ),
    ],
)
def test_what_is_not_sure_proves_nothing(case: Case) -> None:
    assert ram_read_bytes_per_s(case) is None
