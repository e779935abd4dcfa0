"""One module per engine: how it reports what it is and what it does."""
