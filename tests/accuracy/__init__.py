"""How often the diagnosis is right: labelled runs, counted."""
