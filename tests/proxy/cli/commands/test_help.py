"""What `--help` says: the commands in the order in which they are met, and no value for a flag."""

import re

import pytest

from fakes.commands import run

ORDER = "serve demo status tail explain runs run report top doctor service fit bench replay mcp"


def test_commands_stand_in_the_order_in_which_they_are_met() -> None:
    said = run("-h", env={"COLUMNS": "120"}).stdout

    assert re.findall(r"^│ (\w+) ", said, re.MULTILINE) == ORDER.split()


@pytest.mark.parametrize("command", ["", *ORDER.split()])
def test_a_flag_takes_no_value(command: str) -> None:
    said = run(*command.split(), "--help", env={"COLUMNS": "120"}).stdout

    assert "-h" in said
    assert "<bool>" not in said
