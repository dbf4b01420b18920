"""Parts that inference and training share: attention, pooling and the modules after it, recurrence, weights.

Importing `pooling` does not import torch. Other packages import `pooling`, `post_pooling`, `weights`.
"""
