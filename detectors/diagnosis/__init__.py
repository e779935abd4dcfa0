"""From a case to a diagnosis: ask all detectors, keep what explains the loss, rank it."""
