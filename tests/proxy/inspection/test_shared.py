"""What doctor says of the store that baselines are shared through."""

from dataclasses import replace

from fakes.doctor import checks, seen
from slowtok.config.settings import load
from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.inspection.seen import StoreSeen
from slowtok.proxy.inspection.shared import see_store

NAME = "shared-baselines"
STORE = StoreSeen(named="redis at h:6379")


def test_nothing_is_said_where_none_is_set() -> None:
    assert checks(seen(), NAME) == []


def test_one_that_answers_is_fine() -> None:
    [check] = checks(seen(store=STORE), NAME)

    assert (check.area, check.state) == ("host", "ok")
    assert "redis at h:6379, which answers" in check.said


def test_one_that_does_not_is_hidden_with_advice() -> None:
    [check] = checks(seen(store=replace(STORE, failure="its name is not known")), NAME)

    assert (check.area, check.state) == ("hidden", "unknown")
    assert check.said.endswith("redis at h:6379: its name is not known")
    assert check.advice is not None
    assert "baselines_url" in check.advice


async def test_it_is_asked_once() -> None:
    port = free_port()
    settings = load({"baselines_url": f"redis://:h1dden@127.0.0.1:{port}"}, {})

    assert await see_store(load({}, {})) is None
    assert await see_store(settings) == StoreSeen(
        named=f"redis at 127.0.0.1:{port}", failure="nothing listens there"
    )
