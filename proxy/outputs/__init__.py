"""Sinks for finished requests: headers, record, log, events, case files."""
