"""Host and GPU samples, taken in a process of their own."""
