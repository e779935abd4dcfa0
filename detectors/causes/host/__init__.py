"""Causes whose remedy is on the host."""
