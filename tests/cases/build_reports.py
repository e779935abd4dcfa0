"""Writes the cases of all reports, and the label of each, into `tests/cases/reports`.

    PYTHONPATH=tests .venv/bin/python -m cases.build_reports

`NAME.json` is the case, as `slowtok replay` reads it; `NAME.label.json` is what is right to say of
it, where it comes from and what was inferred. Nothing is random: the same code writes the same
files.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from cases import (
    disk_reports,
    engine_reports,
    gpu_reports,
    link_reports,
    memory_reports,
    offload_reports,
    prompt_reports,
    quiet_reports,
    server_reports,
    sharing_reports,
)
from cases.parts import USUAL, Report
from slowtok.detectors.case.case import Case

MODULES = (
    memory_reports,
    disk_reports,
    gpu_reports,
    link_reports,
    server_reports,
    sharing_reports,
    quiet_reports,
    offload_reports,
    engine_reports,
    prompt_reports,
)
FOLDER = Path(__file__).parent / "reports"
DIGITS = 6

INFORMED = (
    "c10-disk-70b",
    "c3-eager",
    "c4-grammar",
    "f4-kv-type-on-cpu",
    "f6-old-build",
    "l1-allreduce-x99",
    "l3-riser-by-layer",
    "l3-riser-by-tensor",
    "l5-two-radeons",
    "p11-vgpu-unlicensed",
    "p13-starved-low-pstate",
    "p4-harmless-cap-3090",
    "p6-harmless-cap-4090",
    "p7-gb10-low-power",
    "q1-neighbours-prefill",
    "q3-kv-full",
    "q7-sliding-window",
    "q9-cache-cleared",
    "r012-cannot-rewind",
    "r023-template-rewrites",
    "r030-fit-leaves-room",
    "r035-compiles-3090",
    "r036-compiles-drafter",
    "r045-drafts-gb10",
    "r045-no-drafts-gb10",
    "r045-sure-drafts-gb10",
    "r048-driver-mismatch",
    "r053-build-8323",
    "r064-gtt-7900xt",
    "r064-room-7900xt",
    "r066-vulkan-9060xt",
    "r073-hello-22500",
    "r085-model-swap",
    "r087-counter-zero",
    "r091-compiles-bucket",
    "s1-spill-unnamed-card",
    "s12-held-by-another",
    "s3-not-spill-5070ti",
    "s6-llama70b-a5000",
    "s8-smaug72b-p40s",
    "v1-mixtral-3090",
    "v11-attribution-header",
    "v12-drafts-useless",
    "v15-allreduce-xeon",
    "v17-starved-low-clock",
    "v19-x1-riser",
    "v2-llama70b-split",
    "v3-ps-says-gpu",
    "v5-depth-0",
    "v5-depth-16384",
    "v5-depth-32768",
    "v5-depth-4096",
    "v6-harmless-cap-3090",
    "v7-cap-230w",
    "v9-disk-7b",
    "x14-threads-over-quota",
    "x3-prose-after-counting",
    "x5-sticky-regression",
)
"""Reports that a constant, a detector's sources or a detector's test quote, or that a rule was
mended by: their split is `tuning`, and the accuracy that is published leaves them out."""


def reports() -> Iterator[Report]:
    """Yield all reports."""
    for module in MODULES:
        for made in module.REPORTS:
            yield made()


def case_text(case: Case) -> bytes:
    """Return a case file: what is not known is left out, times are cut to microseconds."""
    return orjson.dumps(_short(orjson.loads(orjson.dumps(case)))) + b"\n"


def label_text(report: Report) -> bytes:
    """Return the label of a report."""
    label = {
        "slow": report.slow,
        "primary": list(report.primary),
        "allowed": list(report.allowed),
        "verdicts": list(report.verdicts),
        "split": "tuning" if report.name in INFORMED else "published",
        **({"later": report.later} if report.later else {}),
        **({"needs": report.needs} if report.needs else {}),
        "source": report.url,
        "says": report.says,
        "inferred": [
            {"what": what, "reason": reason}
            for what, reason in {**_usual(report), **report.inferred}.items()
        ],
    }
    return orjson.dumps(label, option=orjson.OPT_INDENT_2) + b"\n"


def _usual(report: Report) -> dict[str, str]:
    known = {
        "timeline": True,
        "device.gpus": any(gpu.bandwidth_bytes_per_s for gpu in report.case.device.gpus or ()),
        "model": report.case.model.layers is not None,
        "server.gpu_indices": bool(report.case.server.gpu_indices),
    }
    return {f"{what} (as in all)": why for what, why in USUAL.items() if known[what]}


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def main() -> None:
    """Write all files; those of reports that are no more are taken away."""
    FOLDER.mkdir(exist_ok=True)
    written = set()
    for report in reports():
        for suffix, text in (
            (".json", case_text(report.case)),
            (".label.json", label_text(report)),
        ):
            path = FOLDER / f"{report.name}{suffix}"
            path.write_bytes(text)
            written.add(path)
    for old in set(FOLDER.glob("*.json")) - written - {FOLDER / "expected.json"}:
        old.unlink()


if __name__ == "__main__":
    main()
