"""Stand-ins for what tests cannot have: cases with chosen facts."""
