"""Parts that inference and training share: attention, pooling and the modules after it, recurrence, weights.

`pooling` and its table are read without torch. From outside: `pooling`, `post_pooling`, `weights`.
"""
