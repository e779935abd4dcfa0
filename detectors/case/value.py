"""`value`: the decorator of immutable data classes.

The type checker enforces immutability; nothing does at run time.

A frozen dataclass sets every field through `object.__setattr__`, and takes three times as long to
make for it. A request makes forty values with 300 fields: a twentieth of all that its whole reply
costs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:

    def value(*, frozen: bool, **how: Any) -> Any:
        """Return what makes a class a dataclass; `frozen` is for the type checker."""
        return dataclass(**how, unsafe_hash=frozen)


__all__ = ["value"]
