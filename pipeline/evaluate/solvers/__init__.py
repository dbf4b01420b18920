"""Linear classifiers of frozen vectors, fitted many at a time: one per training part and penalty.

Import `build_solver` from here, and the types from `linear`.
"""

from pipeline.evaluate.solvers.linear import Solver
from pipeline.evaluate.solvers.logistic import Lbfgs

__all__ = ["build_solver"]


def build_solver(name: str, seed: int) -> Solver:
    """Create the solver "lbfgs" or "sgd"; the seed is that of all random choices."""
    if name == "lbfgs":
        return Lbfgs()
    from pipeline.evaluate.solvers.sgd import Sgd  # imports torch

    return Sgd(seed)
