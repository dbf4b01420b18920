"""Trainable encoders, heads and templates that are trained with them, and saving as encoder folders.

From outside: `TrainableEncoder`, `save_folder`.
"""
