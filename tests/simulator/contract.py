"""Values of the product's contract, made by name.

A field that the contract does not have (yet, or any more) is left out, so that the same runs can be
shown to another version of the detectors and the figures compared.
"""

from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def has(kind: type[object], name: str) -> bool:
    """Say whether a value of the contract has this field."""
    return any(field.name == name for field in fields(kind))  # type: ignore[arg-type]


def made(kind: type[T], /, **values: Any) -> T:
    """Return a value of this kind from those of its fields that it has."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in known})
