"""One look at engines, memory, GPUs and host without any traffic, and what is wrong with them."""
