"""Running tasks on workers: the cluster, the pool of workers, their heartbeat, one local process, metrics.

Nothing in here knows what a task computes. From outside: `connect`, `Workers`, `Pool`, `progress`.
"""
