"""Healthy rates that machines with the same card tell each other through one store."""
