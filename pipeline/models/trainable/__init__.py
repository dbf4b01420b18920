"""Trainable encoders, language heads and templates that are trained with them, and saving as encoder folders.

Other packages import `TrainableEncoder`, `save_folder`.
"""
