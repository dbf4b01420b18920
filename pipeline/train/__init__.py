"""Training: what a step does, and what a checkpoint holds. Nothing here knows where rows come from or where it runs."""
