"""NVIDIA's GPUs, by NVML and the kernel's own files."""
