"""Towards engines: connections, requests and replies, taken apart strictly."""
