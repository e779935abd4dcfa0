"""What model files and an engine's own words say of a model: shape, size, KV cache."""
