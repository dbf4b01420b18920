"""Layers that inference and training share: attention, pooling, recurrence, linear maps, weights.

Nothing in here knows of folders as a whole.
"""
