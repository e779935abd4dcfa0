"""Plumbing that knows no request: files, logs, clocks, the event loop and the heap."""
