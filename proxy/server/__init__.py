"""Accepts clients: the port, access control, relay or own page, and the orderly shutdown."""
