"""Worker processes, which relay, and the observing process, which diagnoses."""
