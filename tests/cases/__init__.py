"""Cases rebuilt from real reports, each with what is the right thing to say of it beside it."""
