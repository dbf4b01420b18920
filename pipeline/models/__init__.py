"""Models: encoders (folders, layers, training, inference), translators, masked language models.

Other packages mostly use `folder.folder.open_folder` and `inference.encoder.load_encoder`.
"""
