"""Augment a corpus: run models, edit words, keep or reject variants, write the manifest and the page.

Only jobs import from here: `augment` and its result `Augmentation`.
"""
