"""Tokens of texts: tokenizers, templates, budgets, and how much of a corpus a tokenizer covers.

From outside: `Tokens`, `open_tokenizer`.
"""
