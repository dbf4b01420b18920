"""Layers that inference and training share: attention, pooling, recurrence, linear maps, weights.

Nothing here depends on the layout of an encoder folder.
"""
