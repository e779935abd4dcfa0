"""The demonstration: a real engine, a real model, real slowdowns."""
