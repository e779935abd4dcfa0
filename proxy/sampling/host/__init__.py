"""The host's samples: CPU, memory, pressure, processes, cgroups, ports."""
