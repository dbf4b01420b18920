"""Compare encoders on evaluation tasks, and measure the geometry of their vectors.

Other packages import `evaluate`, `report` and `geometry`.
"""
