"""`slowtok doctor`: one look at engines, memory, GPUs and host, without any traffic."""
