"""Fits the constants of the envelope on published measurements: `make fit`.

Read in this order: `rows` (what is fitted on, and what is left out), `model` (the formula and its
parameters), `folds` (what is held out), `bands` (where the low edge comes from), `prefill`,
`report` and `output`. Not part of the installed program.
"""
