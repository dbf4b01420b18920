"""Tokenizers, templates around a text, packed buffers, and how well a vocabulary covers a corpus.

No module here reads a corpus or runs a model. Other folders mostly use `load_tokenizer`, `Tokens` and
`Tokenizer`; pipeline.models also uses templates and budget, and the flows use coverage.
"""
