"""Apple's GPUs, by macmon."""
