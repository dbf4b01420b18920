"""Write variants of a corpus's texts: model outputs, edits, judging, manifest and page.

Only jobs import from here: `augment` and its result `Augmentation`.
"""
