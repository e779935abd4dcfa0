"""One module for each API's way to say tokens, usage and timings."""
