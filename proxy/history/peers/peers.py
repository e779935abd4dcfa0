"""Rates of other machines with the same card, and the rates that this one tells them.

Strategy: this machine's own rates stay where they always were (`LearnedStore`). The store holds one
small row for each card and setup, which only that card's machine writes, so that nobody waits for
anybody. A thread reads and writes; a request only looks at what is there already, and leaves word
of what it would have liked to know. While the store is away the last known rows are used, and what
was learned waits, the newest of each setup; nothing is lost, since the next row holds it all.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slowtok.config.settings import Settings
from slowtok.proxy.history.peers.peer_key import PeerKey
from slowtok.proxy.history.peers.store import (
    MAX_OF_A_CARD,
    Store,
    extra_of,
    in_words,
    open_store,
    pack,
    shown,
    unpack,
)
from slowtok.proxy.history.rates import LearnedRate
from slowtok.proxy.runtime.bounded_map import BoundedMap

REFRESH_S = 60.0
SHORTEST_WAIT_S = 0.05
MAX_PLACES = 256
CLOSE_S = 3.0  # at the end, a store that does not answer is left behind after this
_NOT_ASKED = "not asked yet"
_ANSWERS = "answers"

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the store said of one setup: this card's own rates, and those of each other card."""

    mine: tuple[LearnedRate, ...] = ()
    others: tuple[tuple[LearnedRate, ...], ...] = ()
    at_s: float | None = None


class Peers:
    """Rates by place, as the store last told them; `of` and `tell` never wait."""

    def __init__(
        self,
        store: Store,
        *,
        named: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self.named = named
        self._now_s = now_s
        self._breaker = Breaker(now_s)
        self._lock = threading.Lock()  # held for single steps in memory only
        self._told: BoundedMap[PeerKey, Told] = BoundedMap(MAX_PLACES)
        self._wanted: BoundedMap[PeerKey, None] = BoundedMap(MAX_PLACES)
        self._unsent: BoundedMap[PeerKey, tuple[LearnedRate, ...]] = BoundedMap(MAX_PLACES)
        self._state = _NOT_ASKED
        self._reads = self._writes = self._unreadable = 0
        self.failures = 0
        self._is_over = False
        self._nudged = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def failure(self) -> str | None:
        """Why the store cannot be asked; None while it can."""
        return None if self._state in (_NOT_ASKED, _ANSWERS) else self._state

    def start(self) -> None:
        """Begin to talk to the store, in a thread."""
        self._thread = threading.Thread(target=self._run, name="shared baselines", daemon=True)
        self._thread.start()

    def of(self, place: PeerKey) -> Told:
        """Return what is known of a setup now; what is old or missing is asked for meanwhile."""
        with self._lock:
            told = self._told.get(place, Told())
            if told.at_s is None or self._now_s() - told.at_s >= REFRESH_S:
                self._wanted[place] = None
                self._nudged.set()
        return told

    def tell(self, place: PeerKey, rates: Sequence[LearnedRate]) -> None:
        """Let the others know this card's newest healthy rates of a setup."""
        with self._lock:
            self._unsent[place] = tuple(rates[-MAX_OF_A_CARD:])
            self._nudged.set()

    def status(self) -> dict[str, Any]:
        """Return how it stands with the store, for /slowtok/status."""
        with self._lock:
            learned = [told for told in self._told.values() if told.others]
            waiting = len(self._unsent)
        said = {
            "store": self.named,
            "state": self._state,
            "retry_in_s": round(self._breaker.left_s, 1) or None,
            "setups_with_peers": len(learned),
            "peer_rates": sum(len(card) for told in learned for card in told.others),
            "rows_read": self._reads,
            "rows_written": self._writes,
            "rows_waiting": waiting,
            "rows_unreadable": self._unreadable,
            "failures": self.failures,
        }
        return {name: value for name, value in said.items() if value is not None}

    def close(self) -> None:
        """Write what waits, and stop; give up on a store that does not answer."""
        self._is_over = True
        self._nudged.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        else:
            self._close()

    def sync(self) -> None:
        """Do all that waits, until the store fails; in the thread, or in a test's own time."""
        while not self._breaker.left_s and (job := self._next()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - whatever a store raises costs only itself
                self.failures += 1
                self._state = in_words(error)
                self._breaker.failed()
                return
            if self._state == _ANSWERS:  # a sign of life alone ends no pause
                self._breaker.succeeded()
            self._state = _ANSWERS

    def _run(self) -> None:
        while not self._is_over:
            self.sync()
            waits = self._next() is not None
            self._nudged.wait(max(self._breaker.left_s, SHORTEST_WAIT_S) if waits else None)
            self._nudged.clear()
        self.sync()
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self._store.close()

    def _next(self) -> Callable[[], None] | None:
        """Return what is to be done next: rows that failed stand behind those that wait."""
        if self._state != _ANSWERS:
            return self._reach
        with self._lock:
            if self._unsent:
                place, rates = next(iter(self._unsent.items()))
                self._unsent.move_to_end(place)
                return lambda: self._send(place, rates)
            if self._wanted:
                place = next(iter(self._wanted))
                self._wanted.move_to_end(place)
                return lambda: self._refresh(place)
        return None

    def _reach(self) -> None:
        self._store.check()

    def _send(self, place: PeerKey, rates: tuple[LearnedRate, ...]) -> None:
        """Write a card's row: its newest rates, also those from before this machine's state."""
        known = {rate.at_unix_s: rate for rate in (*self._ask(place).mine, *rates)}
        row = pack(known.values())
        self._store.write(place, row, at_unix_s=max(known))
        self._writes += 1
        with self._lock:
            if self._unsent.get(place) is rates:  # else there is more by now
                del self._unsent[place]

    def _refresh(self, place: PeerKey) -> None:
        self._ask(place)

    def _ask(self, place: PeerKey) -> Told:
        found, now_unix_s = self._store.read(place), self._store.now_unix_s()
        self._reads += len(found)
        read = {card: self._unpacked(row, now_unix_s) for card, row in found.items()}
        if stale := [card for card, rates in read.items() if not rates and card != place.card]:
            self._store.forget(place.setup, stale)
        mine = read.pop(place.card, None) or ()
        others = tuple(rates for rates in read.values() if rates)
        told = Told(mine=mine, others=others, at_s=self._now_s())
        with self._lock:
            self._told[place] = told
            self._wanted.pop(place, None)
        return told

    def _unpacked(self, row: bytes, now_unix_s: float) -> tuple[LearnedRate, ...]:
        try:
            return unpack(row, now_unix_s=now_unix_s)
        except ValueError:
            self._unreadable += 1
            return ()


def open_peers(settings: Settings) -> Peers | None:
    """Return the peers at `baselines_url`; None where none is set. Nothing is sent yet.

    Raises:
        SettingsError: the store's library is not installed, or cannot use the URL.
    """
    url = settings.baselines_url.get_secret_value()
    if not url:
        return None
    try:
        store = open_store(url)
    except ImportError:
        needs = f"needs a package that is not here: pip install 'slowtok[{extra_of(url)}]'"
        raise settings.fault("baselines_url", needs) from None
    except ValueError:
        raise settings.fault("baselines_url", "cannot be used as a URL") from None
    return Peers(store, named=shown(url))


class Breaker:
    """Asks a store that has just failed again after a pause that doubles.

    It is closed while all goes well, and open for a while after each failure.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._pause_s = 0.0
        self._until_s = 0.0

    @property
    def left_s(self) -> float:
        """How long nothing is to be tried; 0 where it may be."""
        return max(self._until_s - self._now_s(), 0.0) if self._pause_s else 0.0

    def succeeded(self) -> None:
        """Close it."""
        self._pause_s = 0.0

    def failed(self) -> None:
        """Open it, for twice as long as before."""
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._until_s = self._now_s() + self._pause_s
