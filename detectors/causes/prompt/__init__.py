"""Causes whose remedy is in the prompt, or in what the engine's cache keeps of it."""
