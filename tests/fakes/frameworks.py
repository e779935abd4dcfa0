"""Frameworks that have environments of their own beside ours: `make frameworks` installs them."""

import sys
from pathlib import Path

import pytest

ENVIRONMENT_OF = {"crewai": "crewai", "llama_index": "llama-index"}
"""By the package that is imported."""


def python_of(package: str) -> str:
    """Return the interpreter that has `package`; skip the test where it is not installed."""
    python = Path(sys.prefix) / ENVIRONMENT_OF[package] / "bin" / "python"
    if not python.exists():
        pytest.skip("make frameworks installs it")
    return str(python)
