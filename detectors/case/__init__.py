"""The contract: everything a detector may know about a request, and everything it may say."""
