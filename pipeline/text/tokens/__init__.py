"""Tokenizers, templates around a text, packed buffers, and how well a vocabulary covers a corpus.

No module here reads a corpus or runs a model. Every other folder may import from here: most use
`load_tokenizer`, `Tokens` and `Tokenizer`; the modules of pipeline.models also use templates and budget, and
the flows coverage.
"""
