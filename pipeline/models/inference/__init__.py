"""Encoding texts with a loaded encoder, by the kernel that fits its family.

Other packages import `load_encoder`, `Encoder`, `encode`.
"""
