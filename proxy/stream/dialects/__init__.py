"""One module per API: how its replies report tokens, usage and timings."""
