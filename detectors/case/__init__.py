"""The contract of detectors: everything they may know about a request, and may return."""
