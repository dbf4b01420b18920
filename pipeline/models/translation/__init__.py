"""Translation models: loading, and greedy, beam and sampled decoding.

From outside: `open_translator`, `Translator`.
"""
