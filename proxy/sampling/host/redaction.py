"""Secrets are taken out of command lines and environments before they leave the sampling process.

Strategy: hide too much rather than too little. What an option or a variable is called decides, and
some values look like secrets wherever they stand.
"""

import re
from collections.abc import Mapping

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"key|token(?!i[sz])|secret|passw|passphrase|credential|auth|bearer|cookie|^-hft$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"""\b(?:hf_|sk-|ghp_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_\-]{8,}  # well-known prefixes
    | (?<=://)[^/@\s]+(?=@)                                         # user:password in a URL
    | (?<=Bearer\ )\S+
    """,
    re.VERBOSE,
)
_SECRET_JSON = re.compile(r'("[^"]*"\s*:\s*)("(?:[^"\\]|\\.)*")')
_OUR_SETTINGS = "SLOWTOK_"
_OPTION = re.compile(r"--?[A-Za-z]")
_LONG_OPTION = re.compile(r"--[a-z][a-z-]*(=|$)")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def redact_arguments(arguments: list[str]) -> list[str]:
    """Return the command line with every secret value replaced by `***`."""
    clean: list[str] = []
    option, first = "", True  # the secret option whose values are being hidden
    for argument in arguments:
        if option and not _ends_values(argument, first):
            keep = _is_count(option, argument)
            clean.append(argument if keep else HIDDEN)
            option, first = "" if keep else option, False
            continue
        name, equals, value = argument.partition("=")
        secret = is_secret_name(name)
        option, first = argument if secret and not equals and _OPTION.match(name) else "", True
        if secret and equals and " " not in name and not _is_count(name, value):
            clean.append(f"{name}={HIDDEN}")
        else:
            clean.append(redact_text(argument))
    return clean


def _ends_values(argument: str, first: bool) -> bool:
    # llama-server takes the next argument whatever it looks like, vLLM takes several
    return bool(_LONG_OPTION.match(argument)) if first else argument.startswith("-")


def is_secret_name(name: str) -> bool:
    """Return True if an option or a variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def keyless(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process that needs no secret: slowtok's settings are left out.

    One of them is its key, and others may hold a password in a URL.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.upper().startswith(_OUR_SETTINGS) and not is_secret_name(name)
    }


def redact_variable(name: str, value: str) -> str | None:
    """Return the value without secrets, or None for a variable that is one."""
    if is_secret_name(name) and not _is_count(name, value):
        return None
    return redact_text(value)


def redact_text(text: str) -> str:
    """Replace what looks like a secret inside one value: keys, JSON members, a shell command."""
    text = _SECRET_VALUE.sub(HIDDEN, text)
    text = _SECRET_JSON.sub(_hide_member, text)
    if " -" in text:
        return " ".join(redact_arguments(text.split()))
    return text


def _hide_member(member: re.Match[str]) -> str:
    return f'{member[1]}"{HIDDEN}"' if is_secret_name(member[1]) else member[0]


def _is_count(name: str, value: str) -> bool:
    # --max-num-batched-tokens 8192 is a size, not a secret
    return "tokens" in name.lower() and _NUMBER.fullmatch(value) is not None
