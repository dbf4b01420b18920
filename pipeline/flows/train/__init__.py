"""Training of an encoder on Ray Train, and mining of hard negatives for it.

Other packages import `train`.
"""
