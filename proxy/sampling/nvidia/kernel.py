"""NVIDIA GPUs as the kernel's driver lists them, for when NVML does not answer.

After an update of the driver NVML refuses until the machine was restarted, and so does CUDA to
engines that start then; the kernel's part still says which GPUs there are.
"""

from pathlib import Path

from slowtok.proxy.sampling.nvidia.calls import Values

FOLDER = "proc/driver/nvidia/gpus"


def listed_gpus(root: str = "/") -> list[Values] | None:
    """Return names and addresses by the names of the `GpuFacts` fields; None where none is listed.

    NVML numbers GPUs by their PCI addresses, and so do these.
    """
    folder = Path(root, FOLDER)
    try:
        addresses = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return None
    gpus = []
    for index, address in enumerate(addresses):
        said = _read(folder / address / "information")
        gpus.append(
            {
                "index": index,
                "uuid": said.get("GPU UUID"),
                "name": said.get("Model"),
                "vendor": "nvidia",
                "pci_bus_id": address,
            }
        )
    return gpus or None


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs if value.strip()}
