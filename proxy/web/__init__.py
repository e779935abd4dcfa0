"""slowtok's own pages under /slowtok/: the API and the live page."""
