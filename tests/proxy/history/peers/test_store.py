"""Opening a store, and what is said of it."""

import sys
import traceback

import pytest

from slowtok.config.settings import SettingsError, load
from slowtok.proxy.history.peers.peers import open_peers
from slowtok.proxy.history.peers.store import in_words, shown

PASSWORD = "h1dden"
URLS = {
    "redis": f"redis://user:{PASSWORD}@store.example:1/0",
    "rediss": f"rediss://:{PASSWORD}@store.example:1/0",
    "valkey": f"valkey://:{PASSWORD}@store.example:1/0",
    "postgresql": f"postgresql://user:{PASSWORD}@store.example:1/db?application_name={PASSWORD}",
}


def test_none_is_opened_where_none_is_set() -> None:
    assert open_peers(load({}, {})) is None


@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_no_status_shows_a_password(url: str) -> None:
    peers = open_peers(load({}, {"SLOWTOK_BASELINES_URL": url}))

    assert peers is not None
    assert peers.status()["store"] == f"{url.partition(':')[0]} at store.example:1"
    assert PASSWORD not in str(peers.status())
    peers.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://localhost", "redis at localhost:6379"),
        ("valkey://[::1]", "valkey at [::1]:6379"),
        ("postgresql://h/db", "postgresql at h:5432"),
        ("postgresql:///db?host=/run/x&password=h1dden", "postgresql at a local socket"),
    ],
)
def test_what_is_shown_of_a_url(url: str, said: str) -> None:
    assert shown(url) == said


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [("redis://h", "redis", "redis"), ("postgresql://h", "psycopg", "postgresql")],
)
def test_a_missing_extra_is_named(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for name in ("valkey", "postgresql"):
        monkeypatch.delitem(sys.modules, f"slowtok.proxy.history.peers.{name}", raising=False)

    with pytest.raises(SettingsError, match=rf"pip install 'slowtok\[{extra}\]'"):
        open_peers(load({"baselines_url": url}, {}))


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{PASSWORD}%zz@store.example/db",
        f"postgresql://user@store.example/db?{PASSWORD}=1",
        f"redis://:{PASSWORD}@store.example/0?socket_timeout={PASSWORD}",
    ],
)
def test_a_url_that_its_library_cannot_use_is_a_setting_that_cannot_be_used(url: str) -> None:
    with pytest.raises(SettingsError, match="baselines_url") as raised:
        open_peers(load({"baselines_url": url}, {}))

    assert PASSWORD not in "".join(traceback.format_exception_only(raised.value))


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{PASSWORD}@h/",
        f"redis://:{PASSWORD}@",
        f"redis://:{PASSWORD}@h:0",
        f"redis://:{PASSWORD}@h:port",
        f"redis://:{PASSWORD}/x@h:1",
        f"redis://[{PASSWORD}",
        PASSWORD,
    ],
)
def test_what_is_no_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(SettingsError, match=r"SLOWTOK_BASELINES_URL = \*\*\* ") as raised:
        load({}, {"SLOWTOK_BASELINES_URL": url})

    assert PASSWORD not in str(raised.value)


def test_settings_do_not_show_it_either() -> None:
    assert PASSWORD not in repr(load({"baselines_url": URLS["redis"]}, {}))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError("timed out"), "no answer within 1 s"),
        (ConnectionRefusedError(111, f"Connection refused {PASSWORD}"), "nothing listens there"),
        (ValueError(PASSWORD), "ValueError"),
    ],
)
def test_an_error_is_said_in_own_words(error: Exception, words: str) -> None:
    assert in_words(error) == words
