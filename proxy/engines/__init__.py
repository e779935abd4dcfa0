"""The inference engines: which ones exist, what each one is, and which one a request goes to."""
