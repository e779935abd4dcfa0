"""The store through which machines share what they learn, where one is set."""

import asyncio
from collections.abc import Iterator

from slowtok.config.settings import Settings
from slowtok.proxy.history.peers.peers import open_peers
from slowtok.proxy.inspection.check import Check
from slowtok.proxy.inspection.seen import Seen, StoreSeen

CHECK_URL = "check baselines_url, and whether that server can be reached from here"


async def see_store(settings: Settings) -> StoreSeen | None:
    """Ask the store for a sign of life; None where none is set.

    Raises:
        SettingsError: its library is not installed, or cannot use the URL.
    """
    peers = open_peers(settings)
    if peers is None:
        return None
    await asyncio.to_thread(peers.sync)
    peers.close()
    return StoreSeen(named=peers.named, failure=peers.failure)


def check_shared(seen: Seen) -> Iterator[Check]:
    """Yield what was found of the store, where one is set."""
    store = seen.store
    if store is None:
        return
    if store.failure is None:
        said = f"what healthy requests give is shared through {store.named}, which answers"
        yield Check(area="host", name="shared-baselines", state="ok", said=said)
    else:
        said = f"what other machines learned, through {store.named}: {store.failure}"
        yield Check(
            area="hidden", name="shared-baselines", state="unknown", said=said, advice=CHECK_URL
        )
