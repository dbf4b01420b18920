"""Deciding, fitting and writing the transform of the vectors, such as whitening or a flow.

From outside: `whiten`, and the moments of the live rows.
"""
