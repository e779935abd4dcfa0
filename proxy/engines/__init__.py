"""The inference servers: which there are, what each one is, and which one a request goes to."""
