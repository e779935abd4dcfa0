"""Traces and metrics in the format of OpenTelemetry."""
