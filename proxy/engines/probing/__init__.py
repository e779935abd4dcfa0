"""One probe of an engine: its endpoints, its process and its command line as facts."""
