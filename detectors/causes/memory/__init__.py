"""Causes whose remedy is in how memory is used."""
