"""The past of requests: kept in memory for the next one, and on disk for the next start."""
