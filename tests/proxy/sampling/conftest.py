from collections.abc import Iterator

import pytest

from fakes.listening_process import Server, running


@pytest.fixture
def quiet_server() -> Iterator[Server]:
    with running("0") as server:
        yield server


@pytest.fixture
def busy_server() -> Iterator[Server]:
    """Spin in one thread."""
    with running("1") as server:
        yield server
