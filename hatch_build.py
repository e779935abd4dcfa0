"""Build hook: an editable install imports the three folders as `slowtok.*`.

A wheel maps the folders by `[tool.hatch.build.targets.wheel.sources]`. An editable install is a
plain path on `sys.path`, which cannot rename, so it points at `.dev`, where links do. They are laid
here and not committed: a checkout without symlinks would turn them into text files.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("proxy", "detectors", "config")


class EditableLinks(BuildHookInterface):  # type: ignore[type-arg]  # its parameter is hatchling's own
    """Lay `.dev/slowtok/<folder>` for editable installs; leave every other build alone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the links that are absent.

        Raises:
            OSError: the file system or the user's rights allow no symbolic links.
        """
        if version != "editable":
            return
        package = Path(self.root, ".dev", "slowtok")
        package.mkdir(parents=True, exist_ok=True)
        for folder in FOLDERS:
            link = package / folder
            if not link.is_symlink():
                link.symlink_to(Path("..", "..", folder), target_is_directory=True)
