"""Settings: which source wins, and what the one line says about a bad one."""

import contextlib
import itertools
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowtok.config.settings import Settings, SettingsError, load

ROOT = Path(__file__).resolve().parents[2]
HOST_PORT = "expected HOST:PORT with a port from 0 to 65535, like 127.0.0.1:4141"
INTEGER = "expected a whole number"
LIST = 'expected a list of texts, like ["one", "two"]'
GB_PER_S = "expected 1 to 20,000 GB/s, like 51.2; with 0 slowtok measures it"
TWICE = "two are called x:1; give each its own name, NAME=URL"
DEFAULTS = (ROOT / "config" / "defaults.toml").read_text(encoding="utf-8")


def error(
    arguments: dict[str, Any] | None = None, environ: dict[str, str] | None = None, toml: str = ""
) -> str:
    with pytest.raises(SettingsError) as raised:
        load(arguments or {}, environ or {}, toml, "my.toml")
    return str(raised.value)


def test_defaults_are_the_fields() -> None:
    fields = {field.alias or name for name, field in Settings.model_fields.items()}

    assert set(tomllib.loads(DEFAULTS)) == fields


def test_every_default_stands_under_a_comment() -> None:
    lines = DEFAULTS.splitlines()
    bare = [
        line
        for before, line in itertools.pairwise(lines)
        if line and not line.startswith("#") and not before
    ]

    assert bare == []


def test_defaults_alone() -> None:
    settings = load({}, {})

    assert (settings.host, settings.port) == ("127.0.0.1", 4141)
    assert settings.upstreams() == []
    assert settings.log_path == settings.state_path / "log.jsonl"


def test_each_source_wins_over_the_ones_before() -> None:
    toml = 'listen = "127.0.0.1:1"\nkeep_requests = 11\nlog = "file.jsonl"'
    environ = {"SLOWTOK_LISTEN": "127.0.0.1:2", "SLOWTOK_KEEP_REQUESTS": "22"}

    settings = load({"listen": "127.0.0.1:3"}, environ, toml, "my.toml")

    assert settings.port == 3
    assert settings.keep_requests == 22
    assert settings.log == "file.jsonl"
    assert settings.log_backups == 3


def test_argument_that_was_not_given_leaves_the_rest() -> None:
    assert load({"listen": None}, {"SLOWTOK_LISTEN": "127.0.0.1:2"}).port == 2


@pytest.mark.parametrize("text", ["", "  "])
def test_empty_environment_variable_is_not_set(text: str) -> None:
    names = ("LISTEN", "JSON", "UPSTREAM", "LOG_MAX_BYTES", "CONNECT_TIMEOUT_S")

    assert load({}, {f"SLOWTOK_{name}": text for name in names}) == load({}, {})


def test_other_environment_variables_are_left_alone() -> None:
    assert load({}, {"LISTEN": "x", "PATH": "/bin", "slowtok_listen": "x"}) == load({}, {})


def test_lists_in_the_environment_have_commas() -> None:
    settings = load({}, {"SLOWTOK_UPSTREAM": "a=http://x:1, http://[::1]:2/v1/ ,"})

    assert settings.upstreams() == [("a", "http://x:1"), (None, "http://[::1]:2")]


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False)])
def test_switch_in_the_environment(text: str, value: bool) -> None:
    assert load({}, {"SLOWTOK_JSON": text}).json_lines is value


@pytest.mark.parametrize(
    ("arguments", "environ", "toml", "line"),
    [
        (
            {"listen": "localhost"},
            {},
            "",
            "listen = 'localhost' (from arguments): " + HOST_PORT,
        ),
        (
            {},
            {"SLOWTOK_KEEP_REQUESTS": "many"},
            "",
            "SLOWTOK_KEEP_REQUESTS = 'many' (from environment): " + INTEGER,
        ),
        (
            {},
            {},
            "log_backups = -1",
            "log_backups = -1 (from my.toml): expected at least 0",
        ),
        (
            {"ram_bandwidth": "fast"},
            {},
            "",
            "ram_bandwidth = 'fast' (from arguments): expected a number",
        ),
        (
            {},
            {"SLOWTOK_RAM_BANDWIDTH": "51200000000"},
            "",
            "SLOWTOK_RAM_BANDWIDTH = '51200000000' (from environment): " + GB_PER_S,
        ),
        ({}, {}, "ram_bandwidth = -5", "ram_bandwidth = -5 (from my.toml): " + GB_PER_S),
        (
            {"ram_bandwidth": "nan"},
            {},
            "",
            "ram_bandwidth = 'nan' (from arguments): expected a number",
        ),
        ({}, {}, "colour = 1", "colour = 1 (from my.toml): unknown key"),
        ({}, {}, '"a\\nb" = 1', "a?b = 1 (from my.toml): unknown key"),
        ({}, {}, "[listen]\nport = 1", None),
        ({}, {"SLOWTOK_COLOUR": "1"}, "", "SLOWTOK_COLOUR = '1' (from environment): unknown key"),
        (
            {},
            {},
            'upstream = "http://x"',
            'upstream = \'http://x\' (from my.toml): expected a list of texts, like ["one", "two"]',
        ),
        ({}, {}, "json = maybe", None),
        ({}, {}, "a = 1\na = 2", None),
        (
            {"upstream": ["http://x:1", "http://x:1/"]},
            {},
            "",
            "upstream = ['http://x:1', 'http://x:1/'] (from arguments): " + TWICE,
        ),
    ],
)
def test_error_is_one_line_with_key_value_and_source(
    arguments: dict[str, Any], environ: dict[str, str], toml: str, line: str | None
) -> None:
    said = error(arguments, environ, toml)

    assert "\n" not in said
    assert line in (None, said)


ORIGINS = (
    "https://chat.example.com",
    "http://10.0.0.2:3000",
    "chrome-extension://abc",
    "null",
    "*",
)
NO_ORIGINS = ("chat.example.com", "https://chat.example.com/", "https://*.example.com", "https://")
HOST_NAMES = ("box.example.com", "box", "my_box", "10.0.0.2", "::1", "[fd00::1]")
NO_HOST_NAMES = ("http://box.example.com", "box.example.com:4141", "box/x", "*.example.com", "a b")


@pytest.mark.parametrize(("key", "good"), [("allow_origin", ORIGINS), ("allow_host", HOST_NAMES)])
def test_pages_and_names_that_can_be_allowed(key: str, good: tuple[str, ...]) -> None:
    assert getattr(load({key: good}, {}), key) == good


@pytest.mark.parametrize(
    ("key", "bad", "said"),
    [
        *(("allow_origin", bad, "is no origin; expected one like https://") for bad in NO_ORIGINS),
        *(
            ("allow_host", bad, "is no host name; expected one without scheme and port, like box")
            for bad in NO_HOST_NAMES
        ),
    ],
)
def test_what_no_browser_would_send_is_refused(key: str, bad: str, said: str) -> None:
    line = error({}, {f"SLOWTOK_{key.upper()}": f"*,{bad}" if key == "allow_origin" else bad})
    assert f"(from environment): {bad!r} {said}" in line


def test_source_that_was_overridden_is_not_blamed() -> None:
    said = error({"listen": "bad"}, {"SLOWTOK_LISTEN": "127.0.0.1:2"})

    assert said.startswith("listen = 'bad' (from arguments)")


def test_bad_toml_names_the_file_and_the_place() -> None:
    assert error(toml="listen = ").startswith("my.toml: not valid TOML: ")


def test_long_and_odd_values_are_shown_short_and_plain() -> None:
    said = error({"listen": "\x1b[31m" + "x" * 1000})

    assert "\x1b" not in said
    assert len(said) < 300


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8080", "ftp://x", "http://", "http://:8080", "http://x:99999", "http://x:0",
     "http://x:a", "http://x?q", "http://x y", "a b=http://x", "http://user:secret@x:1"],
)  # fmt: skip
def test_bad_upstream(url: str) -> None:
    assert "(from arguments): " in error({"upstream": [url]})


@pytest.mark.parametrize(
    ("url", "pair"),
    [
        ("http://127.0.0.1:8080", (None, "http://127.0.0.1:8080")),
        ("https://gpu.example/v1/", (None, "https://gpu.example")),
        ("https://gpu.example/base/v1", (None, "https://gpu.example/base")),
        ("big.one=http://[::1]:8080", ("big.one", "http://[::1]:8080")),
    ],
)
def test_good_upstream(url: str, pair: tuple[str | None, str]) -> None:
    assert load({"upstream": [url]}, {}).upstreams() == [pair]


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [("0.0.0.0:80", "0.0.0.0", 80), ("[::1]:4141", "::1", 4141), ("box:0", "box", 0)],
)
def test_listen(listen: str, host: str, port: int) -> None:
    settings = load({"listen": listen}, {})

    assert (settings.host, settings.port) == (host, port)


@pytest.mark.parametrize(
    "listen",
    ["http://127.0.0.1:4141", "", ":4141", "4141", "x:", "x:-1", "x:65536", "x:\u00b2", "x:a"],
)
def test_bad_listen(listen: str) -> None:
    assert "expected HOST:PORT" in error({"listen": listen})


def test_log_goes_where_it_is_told(tmp_path: Path) -> None:
    assert load({"log": "-"}, {}).log_path is None
    assert load({"log": "x.jsonl"}, {}).log_path == Path("x.jsonl")
    in_state = load({"state_dir": str(tmp_path)}, {})
    assert in_state.log_path == tmp_path / "log.jsonl"


@pytest.mark.skipif(sys.platform != "linux", reason="each system has its own place")
def test_state_directory_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert load({}, {}).state_path == Path("/home/ada/.local/state/slowtok")

    monkeypatch.setenv("XDG_STATE_HOME", "/var/ada")
    assert load({}, {}).state_path == Path("/var/ada/slowtok")
    assert load({"state_dir": "~/x"}, {}).state_path == Path("/home/ada/x")


def test_fault_found_later_reads_like_one_found_at_once() -> None:
    settings = load({}, {"SLOWTOK_LISTEN": "127.0.0.1:80"})

    assert str(settings.fault("listen", "cannot be used: in use")) == (
        "SLOWTOK_LISTEN = '127.0.0.1:80' (from environment): cannot be used: in use"
    )
    assert str(settings.fault("json", "no")) == "json = False (from defaults): no"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load({}, {}).listen = "x"


@given(st.dictionaries(st.sampled_from(sorted(tomllib.loads(DEFAULTS))), st.text(max_size=20)))
def test_any_text_is_taken_or_refused_in_one_line(environ: dict[str, str]) -> None:
    with contextlib.suppress(SettingsError):
        load({}, {f"SLOWTOK_{key.upper()}": text for key, text in environ.items()})
        return
    said = error(environ={f"SLOWTOK_{key.upper()}": text for key, text in environ.items()})

    assert said.isprintable()


@pytest.mark.parametrize("url", ["http://bob:hunter2@127.0.0.1:8080", "http://x/?api_key=hunter2"])
def test_no_secret_of_an_upstream_stands_in_a_message(url: str) -> None:
    line = error({"upstream": [url]})

    assert "hunter2" not in line
    assert "***" in line


def test_what_kubernetes_sets_for_a_service_of_this_name_is_no_setting() -> None:
    environ = {"SLOWTOK_SERVICE_HOST": "10.0.0.1", "SLOWTOK_PORT_4141_TCP": "tcp://10.0.0.1:4141"}

    assert load({}, environ) == load({}, {})


@pytest.mark.parametrize(
    ("environ", "toml", "bytes_per_s"),
    [
        ({}, "", None),
        ({"SLOWTOK_RAM_BANDWIDTH": "51.2"}, "", 51.2e9),
        ({"SLOWTOK_RAM_BANDWIDTH": "0"}, "ram_bandwidth = 80", None),
        ({}, "ram_bandwidth = 80", 80e9),
    ],
)
def test_ram_bandwidth_is_in_gb_per_s_and_none_where_it_is_to_be_measured(
    environ: dict[str, str], toml: str, bytes_per_s: float | None
) -> None:
    assert load({}, environ, toml).ram_bytes_per_s == bytes_per_s
