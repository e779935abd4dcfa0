"""The command line: arguments to settings, settings to a command, and what a command prints."""
