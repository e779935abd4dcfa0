"""Structured field values for HTTP (RFC 9651), read strictly: what is not one fails the match."""

import re

_TOKEN = r"[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*"
_DECIMAL = r"-?[0-9]{1,12}\.[0-9]{1,3}"
_INTEGER = r"-?[0-9]{1,15}"
_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_BARE = rf"(?:{_DECIMAL}|{_INTEGER}|{_STRING}|{_TOKEN}|\?[01])"
_KEY = r"[a-z*][a-z0-9_\-.*]*"
_PARAM = rf"; *{_KEY}(?:={_BARE})?"
_ITEM = rf"{_BARE}(?:{_PARAM})*"
_INNER = rf"\( *(?:{_ITEM}(?: +{_ITEM})*)? *\)(?:{_PARAM})*"
_MEMBER = rf"(?:{_INNER}|{_ITEM})"
_LIST = re.compile(rf"{_MEMBER}(?:[ \t]*,[ \t]*{_MEMBER})*")
_PARAMS = re.compile(rf"; *({_KEY})(?:=({_BARE}))?")
_HEAD = re.compile(rf"{_BARE}|\([^)]*\)")
_SPLIT = re.compile(_MEMBER)

Member = tuple[str, dict[str, str]]


def read_list(text: str) -> list[Member]:
    """The members of a list (an item is a list of one): each value with its parameters, as text."""
    assert _LIST.fullmatch(text), f"no structured field: {text!r}"
    members = []
    for member in _SPLIT.findall(text):
        head = _HEAD.match(member)
        assert head is not None
        members.append((head[0], dict(_PARAMS.findall(member[head.end() :]))))
    return members


def read_item(text: str) -> Member:
    (member,) = read_list(text)
    return member
