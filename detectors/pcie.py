"""What a PCI Express lane carries, for detectors and for reading counters alike.

Source: PCI Express Base Specification.
"""

LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""By generation, in one direction, after line coding."""
