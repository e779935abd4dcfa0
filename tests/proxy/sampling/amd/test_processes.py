from pathlib import Path

import pytest

from fakes.amdgpu import FDINFO_OF_6_1, Tree, fdinfo
from slowtok.proxy.sampling.amd import processes as amdgpu_processes
from slowtok.proxy.sampling.amd.processes import (
    Clients,
    DrmClient,
    parse_client,
    processes_on,
    read_kfd_memory,
)
from slowtok.proxy.sampling.host.procfs import ProcFiles

KIB = 1024
PDEV = "0000:03:00.0"
RENDER = "/dev/dri/renderD128"


def named(pid: int) -> str:
    return f"process {pid}"


def test_a_descriptor_of_anything_else_is_no_client() -> None:
    assert parse_client(b"") is None
    assert parse_client(b"pos:\t0\nflags:\t02\nmnt_id:\t9\n") is None
    assert parse_client(b"drm-driver:\ti915\ndrm-pdev:\t0000:00:02.0\ndrm-client-id:\t1\n") is None


def test_a_recorded_file_of_an_older_kernel() -> None:
    assert parse_client(FDINFO_OF_6_1.encode()) == DrmClient(
        key=("0000:08:00.0", "217"),
        vram_bytes=2068 * KIB,
        host_bytes=8192 * KIB,
        evicted_bytes=None,
        busy_ns=107322799,
    )


def test_a_file_of_a_newer_kernel() -> None:
    text = fdinfo(7, vram_kib=1000, gtt_kib=20, evicted_kib=300)
    engines = "drm-engine-gfx:\t5 ns\ndrm-engine-compute:\t7 ns\ndrm-engine-dma:\t100 ns\n"

    assert parse_client((text + engines).encode()) == DrmClient(
        key=(PDEV, "7"),
        vram_bytes=1000 * KIB,
        host_bytes=20 * KIB,
        evicted_bytes=300 * KIB,
        busy_ns=12,
    )


def test_bytes_without_a_unit_and_a_spill_told_only_by_what_was_asked_for() -> None:
    text = (
        b"drm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t1\n"
        b"drm-resident-vram:\t4096\namd-requested-vram:\t12 KiB\n"
    )
    client = parse_client(text)

    assert client is not None
    assert (client.vram_bytes, client.evicted_bytes) == (4096, 8192)
    assert client.host_bytes is None


def test_nobody_uses_the_gpu(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.descriptor(7, 0, "/dev/null", "pos:\t0\n")
    clients = Clients(ProcFiles(), str(tmp_path))

    assert processes_on(PDEV, clients.read({7}, 0.0), {7}, named) == []


def test_a_server_and_another_process(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.descriptor(7, 3, RENDER, fdinfo(1, vram_kib=500, gtt_kib=9, evicted_kib=40))
    tree.descriptor(7, 4, "/dev/dri/renderD129", fdinfo(2, vram_kib=1, pdev="0000:0a:00.0"))
    tree.descriptor(5, 11, RENDER, fdinfo(3, vram_kib=60))
    clients = Clients(ProcFiles(), str(tmp_path)).read({7}, 0.0)

    assert processes_on(PDEV, clients, {7}, named) == [
        {
            "pid": 7,
            "name": "process 7",
            "memory_bytes": 500 * KIB,
            "host_memory_bytes": 9 * KIB,
            "evicted_bytes": 40 * KIB,
            "busy_ratio": None,
            "is_server": True,
        },
        {
            "pid": 5,
            "name": "process 5",
            "memory_bytes": 60 * KIB,
            "host_memory_bytes": 0,
            "evicted_bytes": 0,
            "busy_ratio": None,
            "is_server": False,
        },
    ]


def test_a_client_with_several_descriptors_counts_once(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for pid, number in ((7, 3), (7, 4), (9, 3)):  # duplicated, and handed on to a child
        tree.descriptor(pid, number, RENDER, fdinfo(1, vram_kib=500))
    clients = Clients(ProcFiles(), str(tmp_path)).read({9}, 0.0)
    (process,) = processes_on(PDEV, clients, {9}, named)

    assert (process["pid"], process["memory_bytes"]) == (9, 500 * KIB)


def test_clients_of_one_process_are_added_up(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.descriptor(7, 3, RENDER, fdinfo(1, vram_kib=500))
    tree.descriptor(7, 4, RENDER, fdinfo(2, vram_kib=30))
    (process,) = processes_on(PDEV, Clients(ProcFiles(), str(tmp_path)).read({7}, 0.0), {7}, named)

    assert process["memory_bytes"] == 530 * KIB


def test_busy_is_the_change_of_the_engines_time(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    clients = Clients(ProcFiles(), str(tmp_path))

    def busy(at_s: float, engine_s: float) -> float | None:
        engines = f"drm-engine-compute:\t{int(engine_s * 1e9)} ns\n"
        tree.write("proc/7/fdinfo/3", fdinfo(1, vram_kib=5, engines=engines))
        (process,) = processes_on(PDEV, clients.read({7}, at_s), {7}, named)
        ratio = process["busy_ratio"]
        assert ratio is None or isinstance(ratio, float)
        return ratio

    tree.descriptor(7, 3, RENDER, "")
    assert busy(10.0, 1.0) is None
    assert busy(11.0, 1.6) == pytest.approx(0.6)
    assert busy(13.0, 3.6) == pytest.approx(1.0)
    assert busy(14.0, 3.0) is None  # the kernel may step back


def test_between_searches_only_the_servers_are_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.descriptor(7, 3, RENDER, fdinfo(1, vram_kib=500))
    tree.descriptor(5, 3, RENDER, fdinfo(2, vram_kib=60))
    clients = Clients(ProcFiles(), str(tmp_path))

    def memory(at_s: float) -> dict[int, int]:
        found = processes_on(PDEV, clients.read({7}, at_s), {7}, named)
        return {process["pid"]: process["memory_bytes"] // KIB for process in found}

    assert memory(0.0) == {7: 500, 5: 60}
    tree.write("proc/7/fdinfo/3", fdinfo(1, vram_kib=600))
    tree.write("proc/5/fdinfo/3", fdinfo(2, vram_kib=61))
    assert memory(1.0) == {7: 600, 5: 60}
    assert memory(2.0) == {7: 600, 5: 61}


def test_a_new_server_is_searched_at_once(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    clients = Clients(ProcFiles(), str(tmp_path))
    assert clients.read(set(), 0.0) == {}
    tree.descriptor(7, 3, RENDER, fdinfo(1, vram_kib=500))

    assert list(clients.read({7}, 0.1)) == [7]


def test_a_process_that_ended_or_gave_its_descriptor_up_is_gone(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for pid in (7, 8):
        tree.descriptor(pid, 3, RENDER, fdinfo(pid, vram_kib=500))
    clients = Clients(ProcFiles(), str(tmp_path))
    assert sorted(clients.read({7, 8}, 0.0)) == [7, 8]
    (tmp_path / "proc/7/fd/3").unlink()
    tree.write("proc/8/fdinfo/3", "pos:\t0\n")  # the number names a file now

    assert processes_on(PDEV, clients.read({7, 8}, 2.0), {7, 8}, named) == []


def test_other_processes_are_searched_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amdgpu_processes, "SEARCH_S", 1e-9)  # room for one each time
    tree = Tree(tmp_path)
    for pid in (5, 6, 7):
        tree.descriptor(pid, 3, RENDER, fdinfo(pid, vram_kib=500))
    clients = Clients(ProcFiles(), str(tmp_path))
    counts = [len(clients.read({7}, 2.0 * look)) for look in range(4)]

    assert counts[0] in (1, 2)
    assert counts[-1] == 3


def test_other_users_memory_is_known_to_the_compute_driver(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert read_kfd_memory(ProcFiles(), str(tmp_path), 1001) == {}
    tree.write("sys/class/kfd/kfd/proc/4711/vram_1001", "1048576\n")
    tree.write("sys/class/kfd/kfd/proc/4712/vram_1002", "1048576\n")

    assert read_kfd_memory(ProcFiles(), str(tmp_path), 1001) == {4711: 1048576}
