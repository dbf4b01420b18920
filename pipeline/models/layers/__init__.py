"""Parts that inference and training share: attention, pooling and the modules after it, weights."""
