"""The pages that a night writes: its report, and the list of releases."""
