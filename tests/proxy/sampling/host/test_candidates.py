"""Who is behind a port when nobody's open files may be read; on a tree of files like /proc."""

from pathlib import Path

import pytest

from slowtok.proxy.sampling.host.listener import (
    has_address,
    likeliest,
    listens_in_own_network,
    read_candidates,
)

OLLAMA, ME = 998, 1000
FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 172.17.0.1
        /32 link UNICAST
     |-- 172.17.0.2
        /32 host LOCAL
"""
TCP = (
    "   0: 0100007F:2CAA 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 "
    "31337 1 0000000000000000 100 0 0 10 0\n"
)


class Proc:
    """A folder like /proc; processes start in the order in which they are made."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)

    def add(self, pid: int, command: str, *, user: int = OLLAMA, parent: int = 1) -> None:
        folder = Path(self.path, str(pid))
        (folder / "net").mkdir(parents=True)
        words = command.split()
        comm = Path(words[0]).name[:15] if words else "kworker/0:1"
        rest = f"S {parent} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 {pid} 0 0"
        (folder / "stat").write_text(f"{pid} ({comm}) {rest}\n")
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))
        (folder / "status").write_text(f"Name:\t{comm}\nUid:\t{user}\t{user}\t{user}\t{user}\n")

    def found(self, port: int, *, users: tuple[int, ...] = (OLLAMA,)) -> int | None:
        pids = [int(folder.name) for folder in Path(self.path).iterdir()]
        candidates = read_candidates(sorted(pids), self.path)
        chosen = likeliest(candidates, port, users, is_there=lambda _: True)
        return None if chosen is None else chosen.pid


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    made = Proc(tmp_path)
    made.add(1, "/sbin/init", user=0, parent=0)
    made.add(2, "", user=0, parent=0)  # one of the kernel's own
    return made


def test_ollama_as_its_installer_runs_it(proc: Proc) -> None:
    proc.add(700, "/usr/local/bin/ollama serve")
    proc.add(900, "/usr/local/bin/ollama runner --model /m --port 40111", parent=700)
    proc.add(950, "python3 train.py", user=ME)

    assert proc.found(11434) == 700
    assert proc.found(20011) == 700  # told by OLLAMA_HOST, which may not be read
    assert proc.found(40111) == 900


def test_who_names_the_port_is_before_who_only_is_an_engine(proc: Proc) -> None:
    proc.add(700, "llama-server -m a.gguf")
    proc.add(800, "llama-server -m b.gguf --port 9000")

    assert proc.found(9000) == 800
    assert proc.found(8080) == 700


def test_two_that_show_the_same_are_not_told_apart(proc: Proc) -> None:
    proc.add(700, "/usr/local/bin/ollama serve")
    proc.add(800, "/opt/other/ollama serve")

    assert proc.found(11434) is None


def test_the_sockets_user_tells_two_of_a_kind_apart(proc: Proc) -> None:
    proc.add(700, "/usr/local/bin/ollama serve")
    proc.add(800, "/opt/other/ollama serve", user=ME)

    assert proc.found(11434) == 700
    assert proc.found(11434, users=(ME,)) == 800


def test_what_started_an_engine_with_its_arguments_is_not_it(proc: Proc) -> None:
    proc.add(700, "sudo llama-server --port 9000", user=0)
    proc.add(701, "llama-server --port 9000", user=0, parent=700)

    assert proc.found(9000, users=(0,)) == 701


def test_workers_of_an_engine_are_not_its_root(proc: Proc) -> None:
    proc.add(700, "/opt/bin/python3 /opt/bin/vllm serve /m")
    proc.add(701, "/opt/bin/python3 /opt/bin/vllm serve /m", parent=700)

    assert proc.found(8000) == 700


def test_the_only_program_of_a_services_user_is_it_whatever_its_name(proc: Proc) -> None:
    proc.add(700, "/opt/tabby/start.py")
    proc.add(701, "/opt/tabby/worker", parent=700)
    proc.add(800, "/usr/sbin/daemon", user=0)

    assert proc.found(5000) == 700
    assert proc.found(5000, users=(0,)) is None  # root runs much


def test_a_service_of_several_programs_is_not_guessed(proc: Proc) -> None:
    proc.add(700, "/opt/tabby/start.py")
    proc.add(800, "/opt/tabby/other.py")

    assert proc.found(5000) is None


def test_one_in_a_container_that_listens_there_is_in_another_network(proc: Proc) -> None:
    proc.add(700, "ollama serve")
    Path(proc.path, "700/net/tcp").write_text(f"  sl  local_address\n{TCP}")

    assert listens_in_own_network(700, {31337}, proc.path)
    assert not listens_in_own_network(700, {31338}, proc.path)


def test_a_container_is_found_by_its_own_address(proc: Proc) -> None:
    proc.add(700, "ollama serve")
    Path(proc.path, "700/net/fib_trie").write_text(FIB_TRIE)

    assert has_address(700, "172.17.0.2", proc.path)
    assert not has_address(700, "172.17.0.1", proc.path)  # its gateway's
