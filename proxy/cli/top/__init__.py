"""`slowtok top`: what runs now, in a terminal."""
