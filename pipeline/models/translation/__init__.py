"""Translation models: loading, and greedy, beam and sampled decoding.

Other packages import `open_translator`, `Translator`.
"""
