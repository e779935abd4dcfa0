"""HTTP towards clients, and what both sides share: header fields, ids, errors."""
