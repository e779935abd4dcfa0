"""Relays one request, from its first byte to its last. Start with relay.py."""
