"""One of the running proxy's own pages, asked for by a command on the same machine."""

import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

import orjson

from slowtok.config.settings import Settings

TIMEOUT_S = 2.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class NotThere(Exception):
    """The page could not be had; the text says why, in one line."""


def own_address(settings: Settings) -> str:
    """Return host and port at which a client on this machine reaches the proxy."""
    host = _EVERYWHERE.get(settings.host, settings.host)
    return f"{f'[{host}]' if ':' in host else host}:{settings.port}"


def read_page(settings: Settings, path: str) -> Any:
    """Return what a path under `/slowtok/` gives, as plain values.

    Raises:
        NotThere: nobody listens, it does not answer in time, or somebody else is there.
    """
    url = f"http://{own_address(settings)}/slowtok/{path}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    key = settings.api_key.get_secret_value()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with opener.open(request, timeout=TIMEOUT_S) as reply:
            return orjson.loads(reply.read())
    except TimeoutError:
        raise NotThere(f"{settings.listen} did not answer within {TIMEOUT_S:g} s") from None
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise NotThere(_key_refused(settings, key)) from None
        raise NotThere(not_slowtok(settings)) from None
    except (HTTPException, ValueError):
        raise NotThere(not_slowtok(settings)) from None
    except OSError as error:
        reason = getattr(error, "reason", error)  # urllib wraps what the system said
        if isinstance(reason, TimeoutError):
            raise NotThere(f"{settings.listen} did not answer within {TIMEOUT_S:g} s") from None
        why = getattr(reason, "strerror", None) or type(reason).__name__
        raise NotThere(
            f"no slowtok at {settings.listen} ({why}); `slowtok serve` starts one, "
            "--listen HOST:PORT names another"
        ) from None


def _key_refused(settings: Settings, key: str) -> str:
    if key:
        return f"the API key that was given is not that of {settings.listen}: see SLOWTOK_API_KEY"
    return f"{settings.listen} wants its API key: set SLOWTOK_API_KEY"


def not_slowtok(settings: Settings) -> str:
    """Say that somebody else is at `listen`, and what to do."""
    return f"what listens at {settings.listen} is not slowtok; --listen HOST:PORT names another"
