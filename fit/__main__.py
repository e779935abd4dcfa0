"""`make fit`: fit, print residuals and detection power, write constants and documentation."""

import sys

from fit.bands import edges
from fit.chart import write_chart
from fit.folds import hold_out, kinds_of, unified_of
from fit.generic import fit_generic
from fit.llamafile import fit_llamafile
from fit.model import fit, table
from fit.output import constants_text, write_constants, write_document
from fit.prefill import fit_prefill
from fit.report import (
    of_data,
    of_detection,
    of_engines,
    of_generic,
    of_kinds,
    of_knock_outs,
    of_llamafile,
    of_others,
    of_residuals,
)
from fit.rows import collapse, healthy, llamafile, read
from fit.serving import fit_serving, read_engines, serving_rows
from slowtok.config.efficiency import constants


def main() -> None:
    """Do it all."""
    raw = read()
    rows, out = healthy(raw)
    few = collapse(rows)
    p = fit(table(few, kinds_of(few)), unified=unified_of(few))
    collapsed, every = hold_out(few, few), hold_out(few, rows)
    bands = edges(collapsed, every)
    engines, engines_out = serving_rows(read_engines())
    serving, generic = fit_serving(engines), fit_generic(few)
    llama = fit_llamafile(p, llamafile(raw))
    residuals = of_residuals(p, collapsed, every, bands)
    remarks = ("Residuals, measured / predicted:", *residuals.splitlines())
    own = {maker: found.constants for maker, found in llama.items()}
    unlisted = {memory: found.constants for memory, found in generic.items()}
    prefill = fit_prefill(rows)
    text = constants_text(p, bands, unlisted, own, serving.constants, prefill, few, remarks)
    write_constants(text)
    constants.cache_clear()
    sections = (
        of_data(rows, few, out),
        residuals,
        of_kinds(collapsed),
        of_detection(collapsed, bands),
        of_knock_outs(few, collapsed.residuals["GPU"]),
        of_llamafile(llama),
        of_engines(serving, engines_out),
        of_generic(generic),
        of_others(raw, read_engines()),
    )
    text = "\n\n".join(sections)
    sys.stdout.write(text + "\n")
    write_document(text)
    write_chart(collapsed)


if __name__ == "__main__":
    main()
