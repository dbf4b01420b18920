"""Comparing encoders on evaluation tasks, and measuring the geometry of their vectors.

From outside: `evaluate`, `geometry`.
"""
