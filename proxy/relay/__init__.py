"""One request through, from its first byte to its last. Read relay.py first."""
