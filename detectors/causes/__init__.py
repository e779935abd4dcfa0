"""Detectors: one module for each cause, in the folder of where its remedy lies."""
