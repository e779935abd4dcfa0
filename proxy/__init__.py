"""The proxy: relay, measure, diagnose, report. The way of a request is in docs/ARCHITECTURE.md."""
