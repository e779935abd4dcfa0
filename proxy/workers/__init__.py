"""Several processes that relay, and one that looks on: `workers` in the settings."""
