"""Which machines learn from each other."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes.cases import healthy, with_device, with_server
from fakes.sharing import card, on
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.machine import GpuFacts
from slowtok.proxy.history.keys import decode_setup
from slowtok.proxy.history.peers.peer_key import PeerKey, alike, is_on_gpu

GIB = 2**30


def place(case: Case) -> PeerKey | None:
    return alike(case, decode_setup(case))


def with_model(case: Case, **facts: object) -> Case:
    return replace(case, model=replace(case.model, **facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        with_device(on("a"), gpus=()),
        with_device(on("a"), gpus=(replace(card("a"), uuid=None),)),
        with_device(on("a"), gpus=(replace(card("a"), name=None),)),
        with_device(on("a"), gpus=(replace(card("a"), virtual=True),)),
        with_device(
            with_server(on("a"), gpu_indices=(0, 1)),
            gpus=(card("a"), replace(card("b", index=1), uuid=None)),
        ),
        with_server(on("a"), local=False),
        with_server(on("a"), gpu_indices=()),
        with_server(on("a"), version=None),
        with_device(on("a"), gpus=(replace(card("a"), total_bytes=None),)),
        with_device(on("a"), gpus=(replace(card("a"), bandwidth_bytes_per_s=None),)),
        with_device(on("a"), gpus=(replace(card("a"), default_power_limit_w=None),)),  # laptops
        with_model(on("a"), digest=None, file_bytes=None, name="default"),
        replace(on("a"), envelope=replace(on("a").envelope, decode=None)),
    ],
)
def test_nothing_is_shared_that_would_not_compare(other: Case) -> None:
    assert place(on("a")) is not None
    assert place(other) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda gpu: replace(gpu, name="NVIDIA GeForce RTX 4090 Laptop GPU"),
        lambda gpu: replace(gpu, total_bytes=16 * GIB),
        lambda gpu: replace(gpu, bandwidth_bytes_per_s=576e9),
        lambda gpu: replace(gpu, default_power_limit_w=150.0),
    ],
)
def test_another_card_is_no_peer(change: Callable[[GpuFacts], GpuFacts]) -> None:
    mine, theirs = place(on("a")), place(with_device(on("b"), gpus=(change(card("b")),)))

    assert mine is not None
    assert theirs is not None
    assert mine.setup != theirs.setup


@pytest.mark.parametrize(
    "other",
    [
        with_server(on("b"), version="b2"),
        with_server(on("b"), kind="ollama"),
        with_server(on("b"), kv_type_k="q8_0"),
        with_server(on("b"), speculative=True),
        with_model(on("b"), digest="another"),
        with_device(on("b"), os="windows"),
        with_device(on("b"), cpu_logical_cores=4),
        with_device(with_server(on("b"), gpu_indices=(0, 1)), gpus=(card("b"), card("c", index=1))),
    ],
)
def test_other_work_has_another_place(other: Case) -> None:
    mine, theirs = place(on("a")), place(other)

    assert mine is not None
    assert theirs is not None
    assert mine.setup != theirs.setup


def test_the_same_card_elsewhere_is_a_peer() -> None:
    mine, theirs = place(on("a")), place(on("b"))

    assert mine is not None
    assert theirs is not None
    assert mine.setup == theirs.setup
    assert mine.card != theirs.card


@pytest.mark.parametrize(
    "change",
    [
        {"index": 3},
        {"pci_bus_id": "0000:65:00.0"},
        {"driver": "999.1"},
        {"total_bytes": 24 * GIB - 400 * 2**20},  # what a driver takes for itself differs
    ],
)
def test_what_says_nothing_of_the_rate_does_not_part_them(change: dict[str, object]) -> None:
    gpu = replace(card("b"), **change)  # type: ignore[arg-type]
    other = with_server(with_device(on("b"), gpus=(gpu,)), gpu_indices=(gpu.index,))
    mine, theirs = place(on("a")), place(other)

    assert mine is not None
    assert theirs is not None
    assert mine.setup == theirs.setup


def test_the_folder_of_a_model_does_not_part_them() -> None:
    mine = place(with_model(on("a"), digest=None, name="/home/ann/small.gguf"))
    theirs = place(with_model(on("b"), digest=None, name="C:\\models\\small.gguf"))

    assert mine is not None
    assert theirs is not None
    assert mine.setup == theirs.setup


def test_no_name_leaves_the_machine() -> None:
    found = place(with_model(on("a"), digest=None, name="/home/ann/small.gguf"))

    assert found is not None
    assert {len(found.setup), len(found.card)} == {32}
    assert set(found.setup + found.card) <= set("0123456789abcdef")


def test_the_order_of_cards_does_not_matter() -> None:
    two = with_server(on("a"), gpu_indices=(0, 1))
    one_way = with_device(two, gpus=(card("a"), card("b", index=1)))
    other_way = with_device(two, gpus=(card("b"), card("a", index=1)))

    assert place(one_way) == place(other_way) is not None


def test_a_model_that_is_partly_in_ram_is_told_from_one_that_is_not() -> None:
    whole = with_server(with_model(on("a"), layers=30), gpu_layers=31)  # the output is one more

    assert is_on_gpu(on("a"))
    assert is_on_gpu(whole)
    assert not is_on_gpu(with_server(whole, gpu_layers=10))
    assert is_on_gpu(with_device(healthy(), gpus=()))
