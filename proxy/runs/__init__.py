"""Agent runs: which requests belong together, and where the time of all of them went."""
