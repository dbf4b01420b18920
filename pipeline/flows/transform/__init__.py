"""Decide on the transform of the vectors, such as whitening or a flow; fit, train and store it."""
