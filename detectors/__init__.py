"""Pure diagnosis: from a `Case` to a `Diagnosis`, no I/O, no clock."""
