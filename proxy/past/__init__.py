"""What went before: kept in memory for the next request, and on disk for the next start."""
