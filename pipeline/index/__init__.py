"""The published index: planned, trained, filled part by part, merged, measured and searched.

Only this package imports faiss.
"""
