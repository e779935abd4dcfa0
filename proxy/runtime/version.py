"""The version of this slowtok."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str | None:
    """Return the installed version; None where it runs from a folder that was never installed."""
    try:
        return version("slowtok")
    except PackageNotFoundError:
        return None
