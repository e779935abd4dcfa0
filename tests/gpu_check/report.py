"""The file that is sent in, and what is said of it at the end. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

SCHEMA = 1
SHORTEST_NAME = 4
NOBODY = {"admin", "linux", "localhost", "nvidia", "root", "ubuntu", "user"}
"""Names that tell of nobody, and may be words of other meanings here."""

_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}")


def anonymous(value: Any, names: Collection[str], roots: Collection[str]) -> Any:
    """Return it without paths, these names of people and machines, and numbers of single GPUs.

    `roots` are the folders in `/`: what begins otherwise is an address of the API, and stays.
    """
    if isinstance(value, Mapping):
        return {key: anonymous(inner, names, roots) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [anonymous(inner, names, roots) for inner in value]
    if not isinstance(value, str):
        return value
    begins = rf"/(?:{'|'.join(map(re.escape, sorted(roots)))})/"
    if re.match(begins, value):
        value = PurePosixPath(value).name
    value = re.sub(rf"{begins}[^\s\"',;:)]*", lambda path: PurePosixPath(path[0]).name, value)
    for name in names:
        if len(name) >= SHORTEST_NAME and name.lower() not in NOBODY:
            value = re.sub(rf"\b{re.escape(name)}\b", "NAME", value)
    return _UUID.sub(r"\1-0", value)


def file_name(gpu: str) -> str:
    """Return the name of the file for this kind of GPU."""
    return f"gpu-check-{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}.json"


def wrong(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what slowtok has to answer for; a cause that was missed is for the file alone."""
    found = []
    for step in steps:
        name = step["step"]
        found += [
            f"{name}: {field} is not what nvidia-smi says" for field in step.get("differ", ())
        ]
        if step.get("within") is False:
            found.append(f"{name}: sampling takes {step['sampling_cpu_ratio']:.2%} of a core")
        if step.get("judged") == "false alarm":
            said = ", ".join([step["phase"], *step["causes"]])
            found.append(f"{name}: a healthy request was called slow ({said})")
    return found


def line(step: Mapping[str, Any]) -> str:
    """Return what one step came to."""
    for state in ("skipped", "failed"):
        if state in step:
            return f"{state}: {step[state]}"
    said = ["done"]
    if "compared" in step:
        said.append(f"{len(step['compared'])} readings compared, {len(step['differ'])} differ")
    if "busy_cores" in step:
        said.append(f"{step['busy_cores']} cores are busy with other things")
    if "sampling_cpu_ratio" in step:
        said.append(f"sampling takes {step['sampling_cpu_ratio']:.2%} of a core")
    if "judged" in step:
        named = ", ".join(step["causes"])
        said.append(f"{step['verdict']}{f', {named}' if named else ''}: {step['judged']}")
        if step["planted"]:
            said.append(f"planted {' or '.join(step['planted'])}")
    return "; ".join(said)
