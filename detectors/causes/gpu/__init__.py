"""Causes whose remedy is at the GPU."""
