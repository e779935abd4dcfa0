"""Outputs for finished requests: headers, record, log, metrics, events, case files."""
