"""What users see of a diagnosis: headers, log lines, records."""
