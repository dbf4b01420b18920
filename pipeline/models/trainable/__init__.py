"""Encoders that can be trained, what is trained beside them, and how they are saved as folders.

From outside: `TrainableEncoder`, `save`.
"""
