"""`slowtok bench`: the same prompt again and again, and what it says about a change."""
