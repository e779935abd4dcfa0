"""Accepts clients: listening port, access control, routing to relay or own page, shutdown."""
