"""Run tasks on workers, of a Ray cluster or of one local process, and watch their progress.

Nothing in this package depends on what a task computes. Other packages use `connect`, `Workers`, `Pool`,
`PlainTask` and `progress`. The modules heartbeat, watch, ray_pool and ray_workers import Ray; `connect`
imports them only if it connects to Ray.
"""
