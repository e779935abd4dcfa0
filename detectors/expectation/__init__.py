"""The expectation: the rates that a model should give on its hardware, as a range."""
