"""Text for people: what records, findings and the status look like in a terminal."""
