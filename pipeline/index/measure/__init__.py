"""Measure an index: exact neighbours, recall, search effort, latency and balance."""
