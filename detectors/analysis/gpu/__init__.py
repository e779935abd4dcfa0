"""Analysis of GPU samples: clocks, memory, links, and several GPUs for one model."""
