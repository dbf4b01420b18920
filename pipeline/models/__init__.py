"""Models: encoders (folders, layers, inference, training), translators, masked language models, Glow.

Other packages begin with `folder.folder.open_folder` and `inference.encoder.load_encoder`; each subpackage
says what else is for them.
"""
