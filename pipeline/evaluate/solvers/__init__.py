"""Solvers that fit many linear classifiers at once: one for each training part and strength of the penalty.

Import `build_solver` from here, and the types from `linear`.
"""

from pipeline.evaluate.solvers.linear import Solver
from pipeline.evaluate.solvers.logistic import Lbfgs

__all__ = ["build_solver"]


def build_solver(name: str, seed: int) -> Solver:
    """Create the solver "lbfgs", which makes no random choices, or "sgd" with this seed."""
    if name == "lbfgs":
        return Lbfgs()
    from pipeline.evaluate.solvers.sgd import Sgd  # imports torch

    return Sgd(seed)
