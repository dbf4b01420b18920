"""Training of an encoder on Ray Train, and mining of hard negatives for it.

From outside: `train`.
"""
