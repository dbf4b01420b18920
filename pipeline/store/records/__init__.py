"""Records that are written once: of units, their samples, dead rows and augmented corpora."""
