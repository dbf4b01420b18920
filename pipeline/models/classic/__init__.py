"""Encoders from before Transformers: each with its layers, its training, its inference and its new folders.

Other packages import the function that writes a folder, and `new_vocabulary`.
"""
