"""Pure parsers of what engines send: bytes in, facts out."""
