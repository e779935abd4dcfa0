import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.listening_process import Server, running
from slowtok.proxy.sampling.host.port_owner import (
    NO_LISTENER,
    NO_PERMISSION,
    NOT_VISIBLE,
    Candidate,
    PortListener,
    Socket,
    choose_owner,
    find_listener,
    find_sockets,
    has_address,
    is_elsewhere,
    likeliest,
    listens_in_own_network,
    parse_listeners,
    read_candidates,
)
from slowtok.proxy.sampling.host.process import ProcessStat

# Recorded; the last three are not listening on port 18571 (0x488B): a closing connection, another
# port, and a connection from that port.
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:488B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20305 1 000000000647b460 100 0 0 10 0
   1: 0100007F:488B 0100007F:A320 06 00000000:00000000 03:00000613 00000000     0        0 0 3 00000000f7dc1edc
   2: 00000000:07E8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 475 1 00000000931b5150 100 0 0 10 0
  13: 0100007F:A320 0100007F:488B 01 00000000:00000000 02:00000613 00000000  1000        0 777 3 00000000f7dc1edc
"""  # noqa: E501
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:2CAA 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000   996        0 31337 1 0000000000000000 100 0 0 10 0
"""  # noqa: E501

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc here")

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
TCP_TABLE = (
    "   0: 0100007F:2CAA 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 "
    "31337 1 0000000000000000 100 0 0 10 0\n"
)


def owner(pid: int, name: str = "llama-server", started_ticks: int = 100) -> Candidate:
    stat = ProcessStat(name, 1, 0, 0.0, 1, started_ticks)
    return Candidate(pid, stat, (f"/usr/bin/{name}",), frozenset({1000}))


def test_connections_and_other_ports_are_not_listeners() -> None:
    assert parse_listeners(TCP, 8080) == []
    assert parse_listeners(TCP, 0xA320) == []
    assert parse_listeners("", 8080) == []


def test_listening_sockets_of_both_families() -> None:
    assert parse_listeners(TCP, 18571) == [Socket("0100007F", 20305, 0)]
    assert parse_listeners(TCP6, 11434) == [Socket("0" * 32, 31337, 996)]


def test_workers_that_inherited_the_socket_are_not_the_server() -> None:
    worker, server = owner(3900, started_ticks=205), owner(4000, started_ticks=200)

    assert choose_owner([worker, server]) == server


def test_process_1_may_only_have_passed_the_socket_on() -> None:
    assert choose_owner([owner(1, "systemd", 1), owner(900)]) == owner(900)
    assert choose_owner([owner(1, "llama-server", 1)]) == owner(1, "llama-server", 1)


@needs_proc
def test_a_port_without_a_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    assert find_listener(find_sockets(port), port) == NO_LISTENER


@needs_proc
def test_the_owner_of_a_real_socket(quiet_server: Server) -> None:
    found = find_listener(find_sockets(quiet_server.port), quiet_server.port)

    assert isinstance(found, PortListener)
    assert found.pid == quiet_server.pid
    assert found.name.startswith("python")


@needs_proc
def test_an_ipv6_socket_is_found_too() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        port = listener.getsockname()[1]
        found = find_listener(find_sockets(port), port)

    assert isinstance(found, PortListener)
    assert found.pid == os.getpid()


@needs_proc
def test_a_socket_that_nobody_here_owns_is_not_visible_or_not_permitted() -> None:
    found = find_listener((Socket("0100007F", 2**60),), 1)

    assert found == (NOT_VISIBLE if os.geteuid() == 0 else NO_PERMISSION)


needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root to become another user"
)


def found_by_another_user(port: int) -> str:
    """Return what a user without rights finds behind a port."""
    code = (
        "from slowtok.proxy.sampling.host.port_owner import find_listener, find_sockets; import os;"
        f"os.setuid(65534); print(find_listener(find_sockets({port}), {port}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@needs_root
def test_another_users_server_whose_arguments_tell_nothing_is_no_permission(
    quiet_server: Server,
) -> None:
    assert found_by_another_user(quiet_server.port) == NO_PERMISSION


@needs_root
def test_another_users_server_is_known_by_the_port_in_its_arguments() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running("0", "alone", "--port", str(port), port=port) as server:
        found = found_by_another_user(port)

    assert found.startswith(f"PortListener(pid={server.pid},")


@needs_root
def test_another_users_process_that_only_names_the_port_is_in_doubt_with_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ("0", "alone", "--port", str(port))
    with running(*words, port=port), running(*words):
        assert found_by_another_user(port) == NO_PERMISSION


@pytest.mark.parametrize(
    ("found", "sure"),
    [
        (NO_LISTENER, True),
        ("ssh", True),
        ("docker-proxy", False),
        ("nginx", False),
        (NO_PERMISSION, False),
        (NOT_VISIBLE, False),
        (None, False),
    ],
)
def test_only_nobody_and_a_tunnel_leave_no_server_here(found: str | None, *, sure: bool) -> None:
    assert is_elsewhere(found) is sure


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
    Path(proc.path, "700/net/tcp").write_text(f"  sl  local_address\n{TCP_TABLE}")

    assert listens_in_own_network(700, {31337}, proc.path)
    assert not listens_in_own_network(700, {31338}, proc.path)


def test_a_container_is_found_by_its_own_address(proc: Proc) -> None:
    proc.add(700, "ollama serve")
    Path(proc.path, "700/net/fib_trie").write_text(FIB_TRIE)

    assert has_address(700, "172.17.0.2", proc.path)
    assert not has_address(700, "172.17.0.1", proc.path)  # its gateway's
