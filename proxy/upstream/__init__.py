"""The engine side: connections, requests and replies, parsed strictly."""
