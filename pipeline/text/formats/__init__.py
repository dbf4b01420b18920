"""Read files of every format: good rows in batches, and bad rows with the reason for their quarantine."""
