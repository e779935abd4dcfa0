"""One module for each engine: how it tells what it is and what it does."""
