"""Processing of text before a model reads it: corpora, tokens, and rows for training."""
