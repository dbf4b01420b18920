"""Encode units of the corpus into units of vectors, each once, and isolate texts that kill the encoder.

Users of Ray datasets take `EncodeBlocks`.
"""
