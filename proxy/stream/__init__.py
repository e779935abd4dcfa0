"""Pure readers of what engines put on the wire: bytes in, facts out."""
