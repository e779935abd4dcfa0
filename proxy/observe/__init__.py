"""Turns a finished request into a case, a diagnosis and outputs, off the relay's hot path."""
