"""Opening a store, and what is said of it."""

import sys
import traceback
from dataclasses import replace

import pytest

from fakes.learning import DAY_S, NOW_UNIX_S, rate
from slowtok.config.settings import SettingsError, load
from slowtok.proxy.history.peers.peers import open_peers
from slowtok.proxy.history.peers.store import (
    FUTURE_S,
    MAX_OF_A_CARD,
    MAX_ROW_BYTES,
    in_words,
    pack,
    shown,
    unpack,
)
from slowtok.proxy.history.rates import LearnedRate

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


def read(row: bytes) -> tuple[LearnedRate, ...]:
    return unpack(row, now_unix_s=NOW_UNIX_S)


def test_a_row_comes_back_as_it_was() -> None:
    before = [rate(150.0, days_ago=2), replace(rate(151.0), expected_tps=None)]

    assert read(pack(before)) == tuple(replace(r, engine_version="") for r in before)


def test_it_holds_the_newest() -> None:
    many = [rate(100.0 + n, days_ago=20 - n) for n in range(20)]

    assert [r.tps for r in read(pack(reversed(many)))] == [112.0 + n for n in range(MAX_OF_A_CARD)]


def test_the_longest_row_can_be_read() -> None:
    longest = replace(rate(), made_by="9" * 500, tps=1 / 3, expected_tps=2 / 3)
    row = pack([replace(longest, at_unix_s=NOW_UNIX_S - n / 7) for n in range(20)])

    assert len(row) < MAX_ROW_BYTES
    assert len(read(row)) == MAX_OF_A_CARD


@pytest.mark.parametrize("days", [31.0, -1.5])
def test_what_is_too_old_or_not_yet_is_left_out(days: float) -> None:
    assert FUTURE_S == DAY_S
    assert [r.tps for r in read(pack([rate(1.0, days_ago=days), rate(2.0)]))] == [2.0]


@pytest.mark.parametrize(
    "row",
    [
        b"",
        b"no JSON",
        b"{}",
        b"null",
        b"[1]",
        b"[[1,2,3]]",
        b'[[1,2,3,"1",5]]',
        b'[["1",2,3,"1"]]',
        b'[[1,-2,3,"1"]]',
        b'[[1,0,3,"1"]]',
        b'[[1,true,3,"1"]]',
        b'[[1,2,0,"1"]]',
        b'[[1,NaN,3,"1"]]',
        b"[[1,2,3,4]]",
        b"[" + b'[1,2,3,"1"],' * 8 + b'[1,2,3,"1"]]',
        b'[[1,2,3,"' + b"x" * MAX_ROW_BYTES + b'"]]',
        b"[" * 4000,
        b"\xff\xfe",
    ],
)
def test_nonsense_is_refused(row: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the JSON library's own words
        read(row)
