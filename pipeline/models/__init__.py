"""Models: encoders (folders, layers, inference, training), translators, masked language models, Glow.

Other packages mostly use `folder.folder.open_folder` and `inference.encoder.load_encoder`. The docstring of
each subpackage names the rest of its interface.
"""
