"""Causes whose remedy is in the inference server or its traffic."""
