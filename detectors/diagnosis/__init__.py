"""From a case to a diagnosis: run all detectors, keep causes that explain the loss, rank them."""
