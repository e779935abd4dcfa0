"""Several makers' readers as one."""

from pathlib import Path
from typing import Any

from slowtok.proxy.sampling.gpus import AllGpus, Maker, NoGpus, has_nvidia_card
from slowtok.proxy.sampling.schedule import ALL, Extras

Line = dict[str, Any]


class Reader:
    """GPUs with these numbers; silent ones have not said yet what they have."""

    def __init__(self, *numbers: int, reason: str | None = None, silent: bool = False) -> None:
        self.numbers = numbers
        self.reason = reason
        self.silent = silent
        self.error: Exception | None = None
        self.servers: set[int] | None = set()
        self.asked = 0
        self._told: Line | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def changes(self) -> Line | None:
        gpus = [{"index": number, "of": id(self)} for number in self.numbers]
        line = {"kind": "gpus", "gpus": gpus, "reason": self.reason}
        if self.silent or line == self._told:
            return None
        self._told = line
        return line

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[Line]:
        self.asked += 1
        self.servers = servers
        if self.error is not None:
            raise self.error
        return [
            {"index": number, "of": id(self), "slow_tier": slow_tier} for number in self.numbers
        ]

    def sample_idle(self, servers: set[int] | None) -> list[Line]:
        return self.sample(slow_tier=False, servers=servers)

    def counts(self) -> Line:
        return {"gpu_errors": 1, "gpu_hung": len(self.numbers)}


def sampled(gpus: AllGpus) -> list[tuple[int, int]]:
    lines = gpus.sample(slow_tier=True, servers={7})
    return [(line["index"], line["of"]) for line in lines]


def told(gpus: AllGpus) -> Line:
    gpus.sample_idle(set())
    changes = gpus.changes()
    assert changes is not None
    return changes


def test_nothing_said_is_no_news() -> None:
    gpus = AllGpus([Maker(Reader(silent=True))])

    assert gpus.sample(slow_tier=True, servers=set()) == []
    assert gpus.changes() is None
    assert len(gpus) == 0


def test_numbers_are_unique_and_the_first_makers_are_its_own() -> None:
    nvidia, amd = Reader(0, 1), Reader(0, 1)
    gpus = AllGpus([Maker(nvidia), Maker(amd)])

    assert sampled(gpus) == [(0, id(nvidia)), (1, id(nvidia)), (2, id(amd)), (3, id(amd))]
    changes = told(gpus)
    assert [gpu["index"] for gpu in changes["gpus"]] == [0, 1, 2, 3]
    assert changes["reason"] is None
    assert gpus.changes() is None
    assert len(gpus) == 4


def test_nobody_takes_a_number_before_those_ahead_have_said_what_they_have() -> None:
    nvidia, amd = Reader(0, silent=True), Reader(0)
    gpus = AllGpus([Maker(nvidia), Maker(amd)])
    assert sampled(gpus) == []
    assert amd.asked == 0
    nvidia.silent = False

    assert sampled(gpus) == [(0, id(nvidia)), (1, id(amd))]


def test_a_number_stays_whatever_comes_and_goes() -> None:
    nvidia, amd = Reader(0, 1), Reader(0)
    gpus = AllGpus([Maker(nvidia), Maker(amd)])
    sampled(gpus)
    nvidia.numbers = (1, 2)

    assert sampled(gpus) == [(1, id(nvidia)), (3, id(nvidia)), (2, id(amd))]


def test_a_missing_library_is_told_where_there_is_no_gpu() -> None:
    changes = told(AllGpus([Maker(NoGpus("NVML library not found"), expected=False)]))

    assert changes == {"kind": "gpus", "gpus": None, "reason": "NVML library not found"}


def test_a_missing_library_is_no_matter_where_another_makers_gpu_is() -> None:
    amd = Reader(0)
    changes = told(AllGpus([Maker(NoGpus("NVML library not found"), expected=False), Maker(amd)]))

    assert [gpu["index"] for gpu in changes["gpus"]] == [0]
    assert changes["reason"] is None


def test_a_missing_library_matters_where_the_card_is() -> None:
    makers = [Maker(NoGpus("NVML library not found"), expected=True), Maker(Reader(0))]

    assert told(AllGpus(makers))["reason"] == "NVML library not found"


def test_reasons_of_several_makers() -> None:
    makers = [Maker(Reader(0, reason="GPU 1: lost")), Maker(Reader(0, reason="hangs"))]

    assert told(AllGpus(makers))["reason"] == "GPU 1: lost; hangs"


def test_one_makers_failure_is_its_own_and_ends_with_it() -> None:
    nvidia, amd = Reader(0), Reader(0)
    gpus = AllGpus([Maker(nvidia), Maker(amd)])
    sampled(gpus)
    nvidia.error = ValueError("no")

    assert sampled(gpus) == [(1, id(amd))]
    changes = gpus.changes()
    assert changes is not None
    assert changes["reason"] == "ValueError: no"
    assert len(changes["gpus"]) == 2
    assert gpus.counts()["gpu_errors"] == 3  # one of each reader's own
    nvidia.error = None
    sampled(gpus)
    changes = gpus.changes()
    assert changes is not None
    assert changes["reason"] is None


def test_counts_are_summed() -> None:
    gpus = AllGpus([Maker(Reader(0, 1)), Maker(NoGpus("none")), Maker(Reader(0))])

    assert gpus.counts() == {"gpu_errors": 2, "gpu_samples_stalled": 0, "gpu_hung": 3}


def test_pids_are_not_matched_with_a_driver_that_numbers_others() -> None:
    nvidia, amd = Reader(0), Reader(0)
    gpus = AllGpus([Maker(nvidia, other_pids=True), Maker(amd)])
    gpus.sample(slow_tier=True, servers={7})
    assert (nvidia.servers, amd.servers) == (None, {7})
    gpus.sample_idle({8})
    assert (nvidia.servers, amd.servers) == (None, {8})


def test_nvidia_cards_on_the_bus(tmp_path: Path) -> None:
    def device(address: str, vendor: str, kind: str) -> None:
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")

    assert not has_nvidia_card(str(tmp_path))
    device("0000:01:00.1", "0x10de", "0x040300")  # the sound of a card
    device("0000:03:00.0", "0x1002", "0x030000")
    (tmp_path / "sys/bus/pci/devices/0000:05:00.0").mkdir()
    assert not has_nvidia_card(str(tmp_path))
    device("0000:02:00.0", "0x10de", "0x030200")
    assert has_nvidia_card(str(tmp_path))
