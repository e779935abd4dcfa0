"""A client that is behind is charged until it has caught up, and no longer."""

import asyncio

from slowtok.proxy.relay import backpressure as module
from slowtok.proxy.relay.backpressure import BacklogWatch


async def test_client_that_keeps_up_is_never_looked_at_again() -> None:
    looks = []

    def nothing() -> int:
        looks.append(1)
        return 0

    watch = BacklogWatch(nothing)

    watch.note()
    await asyncio.sleep(2 * module.POLL_S)
    watch.close()

    assert len(looks) == 1
    assert watch.blocked_s == 0.0


async def test_client_that_catches_up_in_a_pause_is_not_charged_with_the_pause() -> None:
    waiting = [1000, 500, 0]
    caught_up = asyncio.Event()

    def left() -> int:
        if len(waiting) == 1:
            caught_up.set()
            return waiting[0]
        return waiting.pop(0)

    watch = BacklogWatch(left)
    watch.note()
    await asyncio.wait_for(caught_up.wait(), 5)
    charged_s = watch.blocked_s
    await asyncio.sleep(2 * module.POLL_S)
    watch.close()

    assert charged_s in {watch.blocked_s, 0.0}
    assert 0.0 < watch.blocked_s < 5.0


async def test_what_is_open_at_the_end_counts_until_then() -> None:
    watch = BacklogWatch(lambda: 1)
    watch.note()
    await asyncio.sleep(module.POLL_S)

    watch.close()

    assert watch.blocked_s >= module.POLL_S / 2
    assert watch.blocked_s < 5.0
