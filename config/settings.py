"""Settings: defaults < file < environment < arguments, every error with key, value and source.

`load` is pure: text and mappings in, frozen `Settings` out. Only the command line touches the
process's own arguments, environment and files. pydantic-settings would not make this module
shorter: that library reads only the process's own environment, passes over unknown variables, and
does not say which source a bad value came from.
"""

import difflib
import ipaddress
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
)

ENVIRONMENT_PREFIX = "SLOWTOK_"
_LISTS = ("upstream", "allow_origin", "allow_host", "disable")
_UPSTREAM = re.compile(r"(?:([A-Za-z0-9._-]+)=)?(https?://[^\s/?#]+(?:/[^\s?#]*)?)")


_SECRET = re.compile(r"((?:://)(?=[^/\s'\"]*@)|[?])[^\s'\"@]*")  # user:password@, ?query
_HIDDEN = ("api_key", "baselines_url")
_STORES = ("redis", "rediss", "valkey", "postgresql")
LEAST_RAM_GB_PER_S, MAX_RAM_GB_PER_S = 1.0, 20_000.0
"""One channel of the slowest DDR3 reads 6 GB/s, the fastest memory on a package some 8,000: what
lies outside was meant in another unit."""

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#@*]+")  # as browsers write them
_HOST_NAME = re.compile(r"[^\s/?#@:*\[\]\\]+|\[?[0-9A-Fa-f:.]+\]?")

_VISIBLE = re.compile(r"[!-~]*")  # what can stand in a header field
_KUBERNETES = ("SLOWTOK_SERVICE_", "SLOWTOK_PORT")  # set for a Service of this name, not by users


class SettingsError(Exception):
    """A setting that cannot be used. The text is one line naming key, value and source."""


def _upstream(value: str) -> str:
    found = _UPSTREAM.fullmatch(value)
    parts = urlsplit(found[2]) if found else None
    if parts is None or not parts.hostname or not _has_valid_port(parts.netloc):
        raise ValueError(
            "expected http://HOST:PORT or NAME=http://HOST:PORT, like http://127.0.0.1:8080"
        )
    if parts.username is not None:  # it would stand in every record
        raise ValueError(
            "a URL must not hold a user name or a password (USER:PASSWORD@); let the client send "
            "Authorization"
        )
    return value


def _with_unique_names(upstreams: tuple[str, ...]) -> tuple[str, ...]:
    matches = (_UPSTREAM.fullmatch(value) for value in upstreams)
    names = [m[1] or urlsplit(m[2]).netloc for m in matches if m]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two are called {name}; give each its own name, NAME=URL")
    return upstreams


def _has_valid_port(netloc: str) -> bool:
    try:
        return urlsplit(f"//{netloc}").port != 0
    except ValueError:
        return False


def _listen(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError("expected HOST:PORT with a port from 0 to 65535, like 127.0.0.1:4141")
    return value


def _origin(value: str) -> str:
    """Check what has to be the same as a browser's `Origin`, which ends with its host or port."""
    if not _ORIGIN.fullmatch(value):
        raise ValueError(
            f"{value!r} is no origin; expected one like https://chat.example.com, or * for all"
        )
    return value


def _host_name(value: str) -> str:
    if not _HOST_NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} is no host name; expected one without scheme and port, like box.example.com"
        )
    return value


def _receiver(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("expected http://HOST:PORT, like http://127.0.0.1:4318")
    if value and (parts.username is not None or not _has_valid_port(parts.netloc)):
        raise ValueError(
            "expected http://HOST:PORT without a user name; keys go into OTEL_EXPORTER_OTLP_HEADERS"
        )
    return value


def _ram_bandwidth(value: float) -> float:
    if value and not LEAST_RAM_GB_PER_S <= value <= MAX_RAM_GB_PER_S:
        raise ValueError(
            f"expected {LEAST_RAM_GB_PER_S:g} to {MAX_RAM_GB_PER_S:,.0f} GB/s, like 51.2; with 0 "
            "slowtok measures it"
        )
    return value


def _api_key(value: SecretStr) -> SecretStr:
    if not _VISIBLE.fullmatch(value.get_secret_value()):
        raise ValueError("expected visible ASCII characters without spaces")
    return value


def _store(value: SecretStr) -> SecretStr:
    """Check a store's URL; what is said of it must not show it."""
    url = value.get_secret_value()
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if url and parts.scheme not in _STORES:
        raise ValueError(f"expected a URL that begins with {'://, '.join(_STORES)}://")
    needs_host = parts.scheme != "postgresql"  # which may be reached by a local socket
    if url and (not _has_valid_port(parts.netloc) or (needs_host and not parts.hostname)):
        raise ValueError(f"expected a host and a port, like {parts.scheme}://store.example:1234")
    return value


class Settings(BaseModel):
    """What can be set; `defaults.toml` explains each field and holds its default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    upstream: Annotated[
        tuple[Annotated[str, AfterValidator(_upstream)], ...], AfterValidator(_with_unique_names)
    ]
    listen: Annotated[str, AfterValidator(_listen)]
    log: str
    log_max_bytes: Annotated[int, Field(ge=10_000)]
    log_backups: Annotated[int, Field(ge=0, le=1000)]
    state_dir: str
    ram_bandwidth: Annotated[float, Field(allow_inf_nan=False), AfterValidator(_ram_bandwidth)]
    baselines_url: Annotated[SecretStr, AfterValidator(_store)]
    record: str
    json_lines: Annotated[bool, Field(alias="json")]
    allow_origin: tuple[Annotated[str, AfterValidator(_origin)], ...]
    allow_host: tuple[Annotated[str, AfterValidator(_host_name)], ...]
    api_key: Annotated[SecretStr, AfterValidator(_api_key)]
    allow_no_key: bool
    disable: tuple[str, ...]
    otlp_endpoint: Annotated[str, AfterValidator(_receiver)]
    annotate: Literal["off", "comment", "chunk"]
    split_nonstreamed: Literal["off", "stream"]
    keep_requests: Annotated[int, Field(ge=1, le=100_000)]
    connect_timeout_s: Annotated[float, Field(gt=0, le=600)]
    client_timeout_s: Annotated[float, Field(ge=0.1, le=86_400)]
    head_timeout_s: Annotated[float, Field(ge=0.1, le=3600)]
    max_head_bytes: Annotated[int, Field(ge=8192, le=1 << 24)]
    max_body_bytes: Annotated[int, Field(ge=0, le=1 << 32)]
    max_reply_bytes: Annotated[int, Field(ge=0, le=1 << 32)]
    max_held_bytes: Annotated[int, Field(ge=0, le=1 << 40)]
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)]
    workers: Annotated[int, Field(ge=1, le=256)]
    grace_s: Annotated[float, Field(ge=0, le=86_400)]
    _sources: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def host(self) -> str:
        """The host part of `listen`, without the brackets of an IPv6 address."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def is_local(self) -> bool:
        """Return True if `listen` is an address that only this machine can reach."""
        if self.host.lower().rstrip(".") == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def port(self) -> int:
        """The port part of `listen`; 0 asks for any free one."""
        return int(self.listen.rpartition(":")[2])

    @property
    def state_path(self) -> Path:
        """The state directory, the user's own where none is set."""
        return Path(self.state_dir).expanduser() if self.state_dir else _default_state_path()

    @property
    def ram_bytes_per_s(self) -> float | None:
        """The RAM's bandwidth that was given; None where it is to be measured."""
        return self.ram_bandwidth * 1e9 or None

    @property
    def log_path(self) -> Path | None:
        """The log file; None means standard output."""
        if self.log == "-":
            return None
        return Path(self.log).expanduser() if self.log else self.state_path / "log.jsonl"

    def is_given(self, key: str) -> bool:
        """Return whether somebody set it: in the file, the environment or the arguments."""
        return self._sources.get(key, "defaults") != "defaults"

    def fault(self, key: str, said: str) -> SettingsError:
        """Return the error for a value that turned out to be unusable."""
        value = getattr(self, "json_lines" if key == "json" else key)
        return SettingsError(describe(key, value, self._sources.get(key, "arguments"), said))

    def upstreams(self) -> list[tuple[str | None, str]]:
        """Return (name, URL) of each upstream that was given."""
        matches = (_UPSTREAM.fullmatch(value) for value in self.upstream)
        urls = [(m.group(1), m.group(2).rstrip("/")) for m in matches if m]
        # Clients are given addresses that end in /v1, and name it again in each path.
        return [(name, url.removesuffix("/v1")) for name, url in urls]


def load(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str],
    toml_text: str = "",
    toml_name: str = "",
) -> Settings:
    """Merge the four sources.

    Args:
        arguments: what the command line set; keys whose value is None were not given.
        environ: the environment; names that start with `SLOWTOK_` count.
        toml_text: the content of the configuration file.
        toml_name: its name, for messages.

    Raises:
        SettingsError: an unknown key or a bad value.
    """
    values = tomllib.loads(_defaults_text())
    sources = dict.fromkeys(values, "defaults")
    layers = (
        (_from_toml(toml_text, toml_name), toml_name or "file"),
        (_from_environment(environ), "environment"),
        ({k: v for k, v in arguments.items() if v is not None}, "arguments"),
    )
    for layer, source in layers:
        for key, value in layer.items():
            if key not in values:
                raise SettingsError(describe(key, value, source, _unknown(key, values, source)))
            values[key] = value
            sources[key] = source
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        said = _in_words(str(first["type"]), first.get("ctx", {}), str(first["msg"]))
        raise SettingsError(describe(key, values[key], sources[key], said)) from None
    settings._sources = sources
    if sources["api_key"] == "arguments" and not settings.api_key.get_secret_value():
        raise settings.fault("api_key", "the key is empty; give one, or leave the option out")
    return settings


def describe(key: str, value: object, source: str, said: str) -> str:
    """Return the one line about a setting that cannot be used: key, value, source and why."""
    shown = list(value) if isinstance(value, tuple) else value
    masked = "***" if key in _HIDDEN else _SECRET.sub(r"\1***", repr(shown))
    line = f"{_named(key, source)} = {masked[:120]} (from {source}): {said}"
    return "".join(c if c.isprintable() else "?" for c in line)


_EXPECTED = (  # how pydantic's names of what is wrong begin, and what was expected
    ("greater_than_equal", "at least {ge:g}"),
    ("greater_than", "more than {gt:g}"),
    ("less_than_equal", "at most {le:g}"),
    ("literal_error", "one of {expected}"),
    ("int_", "a whole number"),
    ("float_", "a number"),
    ("finite_number", "a number"),
    ("bool_", "true or false"),
    ("tuple_", 'a list of texts, like ["one", "two"]'),
    ("string_", "text"),
)


def _in_words(kind: str, bounds: Mapping[str, Any], said: str) -> str:
    """Return what is allowed in place of a value that is not."""
    expected = next((words for start, words in _EXPECTED if kind.startswith(start)), None)
    if expected is None:
        return said.removeprefix("Value error, ")
    return f"expected {expected.format(**bounds)}"


def _unknown(key: str, known: Mapping[str, Any], source: str) -> str:
    alike = difflib.get_close_matches(key, known, n=1)
    return f"unknown key; did you mean {_named(alike[0], source)}?" if alike else "unknown key"


def _named(key: str, source: str) -> str:
    """Return a key as it is written in its source."""
    return f"{ENVIRONMENT_PREFIX}{key.upper()}" if source == "environment" else key


def _from_toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{name or 'file'}: not valid TOML: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read `SLOWTOK_*`; lists are separated by commas, an empty one counts as not set."""
    found: dict[str, Any] = {}
    for name, text in environ.items():
        if (
            name.startswith(ENVIRONMENT_PREFIX)
            and not name.startswith(_KUBERNETES)
            and text.strip()
        ):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            found[key] = (
                [part.strip() for part in text.split(",") if part.strip()]
                if key in _LISTS
                else text
            )
    return found


def _defaults_text() -> str:
    return resources.files("slowtok.config").joinpath("defaults.toml").read_text("utf-8")


def _default_state_path() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "slowtok"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "slowtok"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "slowtok"
