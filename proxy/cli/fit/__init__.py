"""`slowtok fit`: what to expect of a model on a machine before it runs."""
