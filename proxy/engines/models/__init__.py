"""Facts about models, from their files and from engines: shape, size, KV cache."""
