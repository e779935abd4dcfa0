"""One real engine for all clients, directly and through a proxy."""

from collections.abc import Iterator

import pytest

from fakes.both import Both
from fakes.engine import real_engine
from fakes.ollama import ollama_stand_in
from fakes.running import keep_ram_bandwidth, running_proxy


@pytest.fixture(scope="package")
def both(tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float) -> Iterator[Both]:
    state = tmp_path_factory.mktemp("state")
    keep_ram_bandwidth(state, ram_bytes_per_s)
    with (
        # one thread: two would wait for each other wherever others have a core
        real_engine(threads=1, slots=1, context=4096, alias="m") as engine,
        running_proxy(state, engine.url) as proxy,
    ):
        yield Both(engine.url, proxy)


@pytest.fixture(scope="package")
def ollama(
    both: Both, tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float
) -> Iterator[Both]:
    """The same behind a stand-in for Ollama, which cannot be installed from a package index."""
    state = tmp_path_factory.mktemp("ollama")
    keep_ram_bandwidth(state, ram_bytes_per_s)
    with ollama_stand_in(both.direct) as url, running_proxy(state, url) as proxy:
        yield Both(url, proxy)
