"""One module for each command of `slowtok`."""
