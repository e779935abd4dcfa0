import pytest

from slowtok.proxy.engines.probing.locality import is_here, is_local, is_own, own_addresses
from slowtok.proxy.sampling.protocol import ProcessFacts

OWN = {"192.168.1.7", "fe80::1"}


@pytest.mark.parametrize("host", ["192.168.1.8", "10.0.0.1", "2001:db8::1", "8.8.8.8"])
def test_another_machine(host: str) -> None:
    assert is_own(host, OWN) is False


def test_a_name_must_be_resolved_first() -> None:
    assert is_own("gpu-box.lan", OWN) is None


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "model.localhost", "127.0.0.1", "127.8.9.10", "::1", "0.0.0.0",
        "192.168.1.7", "fe80::1%eth0", "::ffff:127.0.0.1",
    ],
)  # fmt: skip
def test_this_machine(host: str) -> None:
    assert is_own(host, OWN) is True


async def test_urls() -> None:
    assert await is_local("http://127.0.0.1:8080/v1") is True
    assert await is_local("http://[::1]:8080") is True
    assert await is_local("http://203.0.113.9:8080") is False
    assert await is_local("http://no-such-name.invalid:8080") is None
    assert any(address.startswith("127.") for address in own_addresses())


@pytest.mark.parametrize(
    ("unmapped", "here"),
    [
        (None, True),
        ("no permission", True),
        ("docker-proxy", True),
        ("wslrelay", True),
        ("ssh", False),
        ("kubectl", False),
        ("nginx", False),
        ("litellm", False),
    ],
)
def test_an_engine_behind_a_tunnel_or_a_gateway_is_not_held_against_this_machine(
    unmapped: str | None, *, here: bool
) -> None:
    assert is_here(True, ProcessFacts(port=8080, unmapped=unmapped)) is here


def test_a_gateway_that_says_so_itself_needs_no_process_to_be_seen() -> None:
    assert is_here(True, None, "litellm") is False
    assert is_here(True, None, "llama-swap") is True  # it starts engines on its own machine


def test_where_nobody_was_seen_to_listen_the_address_decides() -> None:
    assert [is_here(said, None) for said in (True, False, None)] == [True, False, None]
