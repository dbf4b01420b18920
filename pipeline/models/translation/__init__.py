"""Translation models: loading, and greedy, beam and sampled decoding.

From outside: `load_translator`.
"""
