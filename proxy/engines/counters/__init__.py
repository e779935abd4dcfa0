"""Engines' own counters, gauges and slots, read while requests are in flight."""
