"""The version of this slowtok."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str | None:
    """Return the installed version; None if slowtok runs from a folder without being installed."""
    try:
        return version("slowtok")
    except PackageNotFoundError:
        return None
