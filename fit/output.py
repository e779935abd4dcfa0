"""Writes `config/efficiency.toml` and the measured part of docs/envelope.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fit.bands import group_of
from fit.model import PUBLISHED_PRIOR, Parameters
from fit.rows import Row
from slowtok.config.efficiency import (
    DecodeConstants,
    LlamafileConstants,
    PrefillConstants,
    ServingConstants,
)

ROOT = Path(__file__).parent.parent
CONSTANTS = ROOT / "config" / "efficiency.toml"
DOCUMENT = ROOT / "docs" / "envelope.md"
BEGIN, END = "<!-- written by make fit -->", "<!-- end of what make fit writes -->"
UNIFIED = ("nvidia-gb10",)


def constants_text(
    p: Parameters,
    bands: Mapping[str, tuple[float, float]],
    generic: Mapping[str, DecodeConstants],
    llamafile: Mapping[str, LlamafileConstants],
    serving: ServingConstants,
    prefill: Mapping[str, PrefillConstants],
    rows: Sequence[Row],
    remarks: Sequence[str],
) -> str:
    """Return `config/efficiency.toml`."""
    lines = [
        "# Written by `make fit`, not by hand. docs/envelope.md says what each constant means."
    ]
    lines += [f"# {remark}" for remark in remarks]
    lines += ["", "[shared]"]
    lines += [f"kv_ratio = {p.kv_ratio:.3f}", f"wide_ratio = {p.wide_ratio:.3f}"]
    lines += [f"moe_layer_us = {p.moe_layer_us:.1f}"]
    lines += [f"old_build_layer_us = {p.old_build_layer_us:.1f}"]
    lines += ["", "[layer_us]"]
    lines += [f"{maker} = {us:.1f}" for maker, us in p.layer_us.items()]
    lines += ["", "[llamafile]"]
    for maker, own in llamafile.items():
        lines.append(
            f"{maker} = {{ layer_us = {own.layer_s * 1e6:.1f}, low = {own.low_ratio:.2f}, "
            f"high = {own.high_ratio:.2f} }}"
        )
    lines += ["", "[decode]", *_decode_lines(p, bands, rows), "", "[generic]"]
    for memory, c in generic.items():
        lines.append(
            f"{memory} = {{ efficiency = {c.efficiency_ratio:.3f}, low = {c.low_ratio:.2f}, "
            f"high = {c.high_ratio:.2f} }}"
        )
    lines += ["", *_serving_lines(serving), "", "[prefill]"]
    for kind, rate in sorted(prefill.items()):
        lines.append(
            f"{kind} = {{ efficiency = {rate.efficiency_ratio:.3f}, moe = {rate.moe_ratio:.2f}, "
            f"low = {rate.low_ratio:.2f}, high = {rate.high_ratio:.2f} }}"
        )
    return "\n".join(lines) + "\n"


def _serving_lines(c: ServingConstants) -> list[str]:
    lines = ["[serving]", f"kv_ratio = {c.kv_ratio:.3f}", f"narrow_ratio = {c.narrow_ratio:.3f}"]
    lines += [f"old_layer_us = {c.old_layer_s * 1e6:.1f}"]
    lines += [f"moe_tensor_layer_us = {c.moe_tensor_layer_s * 1e6:.1f}", "", "[serving.memory]"]
    for name, memory in c.memory.items():
        lines.append(
            f"{name} = {{ efficiency = {memory.efficiency_ratio:.3f}, "
            f"layer_us = {memory.layer_s * 1e6:.1f}, "
            f"moe_layer_us = {memory.moe_layer_s * 1e6:.1f}, "
            f"tensor_layer_us = {memory.tensor_layer_s * 1e6:.1f}, "
            f"low = {memory.low_ratio:.2f}, high = {memory.high_ratio:.2f}, "
            f"several_low = {memory.several_low_ratio:.2f}, "
            f"several_high = {memory.several_high_ratio:.2f} }}"
        )
    lines += ["", "[serving.engine]"]
    for name, engine in c.engine.items():
        lines.append(
            f"{name} = {{ efficiency = {engine.efficiency_ratio:.3f}, "
            f"layer = {engine.layer_ratio:.3f} }}"
        )
    return lines


def _decode_lines(
    p: Parameters, bands: Mapping[str, tuple[float, float]], rows: Sequence[Row]
) -> list[str]:
    lines = []
    unified = {row.spec.kind for row in rows if row.spec.unified} | set(UNIFIED)
    for kind in sorted(set(p.efficiency) | set(PUBLISHED_PRIOR)):
        own = [row for row in rows if row.spec.kind == kind]
        gpus = len({row.gpu for row in own})
        origin = f"{len(own)} rows, {gpus} GPUs" if own else "published, no rows here"
        ratio = p.efficiency.get(kind) or PUBLISHED_PRIOR[kind][0]
        low, high = bands[group_of(kind, unified=kind in unified)]
        known = f"efficiency = {ratio:.3f}, low = {low:.2f}, high = {high:.2f}"
        lines.append(f"{kind} = {{ {known} }}  # {origin}")
    return lines


def write_constants(text: str) -> None:
    """Replace the constants file."""
    CONSTANTS.write_text(text, encoding="utf-8")


def write_document(text: str) -> None:
    """Replace what stands between the markers of docs/envelope.md.

    Raises:
        ValueError: the markers are gone.
    """
    document = DOCUMENT.read_text(encoding="utf-8")
    before, found, rest = document.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{DOCUMENT.name} has lost the markers {BEGIN!r} and {END!r}")
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
