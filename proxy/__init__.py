"""The proxy: relay, measure, diagnose, report. Start at app.py, then relay.py."""
