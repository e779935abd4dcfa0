"""Causes on the way from the proxy to the client."""
