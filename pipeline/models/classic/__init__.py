"""Encoders from before Transformers: each with its layers, training, inference and new folders."""
