"""Training an encoder on the ranks of Ray Train, and mining hard negatives for it.

From outside: `train`, `mine`.
"""
