"""Takes clients in: the port, who is refused, what is relayed and what is a page, and the end."""
