"""The files and commands by which systemd, launchd and the Task Scheduler keep slowtok running.

Pure: texts of files, and commands. Each is a service of the user who installs it and needs no
rights beyond that user's.
"""

import plistlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

Command = tuple[str, ...]

STOP_S = 20  # replies that are on their way may end (`grace_s`: 8 s); then it is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFile:
    """A file that makes slowtok a service, and the commands by which its manager learns of it."""

    path: Path
    text: str
    encoding: str = "utf-8"
    reachable: Command | None = None  # fails where the manager cannot be asked at all
    start: tuple[Command, ...]  # with the file in its place
    stop: tuple[Command, ...]  # before the file goes
    forget: tuple[Command, ...] = ()  # when it is gone
    show: tuple[Command, ...]  # the first one fails where it is not up
    lives: str  # from when to when it is up
    unreachable: str = ""  # what it means, and what to do, where the manager cannot be asked


def systemd_unit(run: Sequence[str], config_home: Path) -> ServiceFile:
    """Return the unit of systemd's user manager; deploy/systemd/user/ has the same one."""
    systemctl = ("systemctl", "--user")
    words = " ".join(map(_systemd_word, run))
    return ServiceFile(
        path=config_home / "systemd" / "user" / "slowtok.service",
        text=_UNIT.format(run=words, stop_s=STOP_S),
        reachable=(*systemctl, "show", "--property=Version"),
        start=(
            (*systemctl, "daemon-reload"),
            (*systemctl, "enable", "--now", "slowtok"),
        ),
        stop=((*systemctl, "disable", "--now", "slowtok"),),
        # A pattern, because it is an error to name a unit that is gone and has not failed.
        forget=((*systemctl, "daemon-reload"), (*systemctl, "reset-failed", "slowtok.servic[e]")),
        # The status has only the log of the newest start, and systemd's words outnumber slowtok's.
        show=(
            (*systemctl, "--no-pager", "--lines=0", "status", "slowtok"),
            ("journalctl", "--user", "--no-pager", "--lines=10", "--identifier=slowtok"),
        ),
        lives="while you are logged in; always after `loginctl enable-linger`",
        unreachable=(
            "no systemd keeps services of this user here (a container, another init, or su in "
            "place of a login): let whatever starts programs here start `slowtok serve`"
        ),
    )


_UNIT = """\
[Unit]
Description=slowtok, says why a request to a language model was slow

[Service]
Type=notify
NotifyAccess=all
ExecStart={run}
SyslogIdentifier=slowtok
EnvironmentFile=-%E/slowtok.env
Restart=on-failure
RestartSec=5
TimeoutStopSec={stop_s}
KillMode=mixed
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=default.target
"""


def _systemd_word(word: str) -> str:
    """Return a word of ExecStart so that systemd takes it as it is."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if plain != word or not word or any(c in word for c in " \t;'") else word


def launchd_agent(run: Sequence[str], home: Path, uid: int) -> ServiceFile:
    """Return the agent of macOS's launchd, which runs while the user is logged in."""
    label, domain = "local.slowtok", f"gui/{uid}"
    path = home / "Library" / "LaunchAgents" / f"{label}.plist"
    agent = {
        "Label": label,
        "ProgramArguments": list(run),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ProcessType": "Interactive",  # others are slowed down beside programs with windows
        "ExitTimeOut": STOP_S,
        "StandardErrorPath": str(home / "Library" / "Logs" / "slowtok.log"),
    }
    return ServiceFile(
        path=path,
        text=plistlib.dumps(agent, sort_keys=False).decode(),
        reachable=("launchctl", "print", domain),
        start=(("launchctl", "bootstrap", domain, str(path)),),
        stop=(("launchctl", "bootout", f"{domain}/{label}"),),
        show=(("launchctl", "print", f"{domain}/{label}"),),
        lives=f"while you are logged in; what goes wrong is in {agent['StandardErrorPath']}",
        unreachable="launchd keeps services of users who are logged in at the screen: log in there",
    )


def scheduled_task(run: Sequence[str], app_data: Path, user: str) -> ServiceFile:
    """Return the task of Windows that starts when the user logs on, and never times out."""
    path = app_data / "slowtok" / "service.xml"
    program, *options = run
    text = _TASK.format(
        user=escape(user),
        program=escape(program),
        options=escape(subprocess.list2cmdline(options)),
    )
    named = ("/tn", "slowtok")
    return ServiceFile(
        path=path,
        text=text,
        encoding="utf-16",
        start=(
            ("schtasks", "/create", *named, "/xml", str(path), "/f"),
            ("schtasks", "/run", *named),
        ),
        stop=(("schtasks", "/end", *named), ("schtasks", "/delete", *named, "/f")),
        show=(("schtasks", "/query", *named, "/v", "/fo", "list"),),
        lives="while you are logged on",
    )


# Left out, a task ends after three days and stays behind on battery, and its priority (7) is below
# that of other programs.
_TASK = """\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <Triggers>
    <LogonTrigger>
      <UserId>{user}</UserId>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="owner">
      <UserId>{user}</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>5</Priority>
  </Settings>
  <Actions Context="owner">
    <Exec>
      <Command>{program}</Command>
      <Arguments>{options}</Arguments>
    </Exec>
  </Actions>
</Task>
"""
