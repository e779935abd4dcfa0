"""Settings and hardware tables."""
