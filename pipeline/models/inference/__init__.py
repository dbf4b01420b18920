"""Encoding texts with a loaded encoder, by the kernel that fits its family.

From outside: `load_encoder`, `Encoder`, `encode`.
"""
