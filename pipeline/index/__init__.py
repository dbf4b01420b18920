"""The published index: planned, trained, filled shard by shard, merged, checked and searched.

Nothing outside this package imports faiss.
"""
