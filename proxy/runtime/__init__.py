"""Infrastructure that knows nothing of requests: files, logs, clocks, event loop, heap."""
