"""Encode units of the corpus into units of vectors, each once, and isolate texts that kill the encoder.

Other packages use `encode`, `EncodeUnit`, and `EncodeBlocks` for Ray datasets.
"""
