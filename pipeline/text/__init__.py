"""Everything that happens to text before a model sees it: corpora, tokens, and rows for training."""
