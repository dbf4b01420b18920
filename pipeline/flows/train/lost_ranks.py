"""Recognize the loss of a rank among the errors of Ray Train, and describe it."""

from collections.abc import Mapping

from pipeline.errors import PipelineError

# Words in the errors of a collective operation whose peer is lost.
_LOST_PEER_WORDS = (
    "gloo",
    "nccl",
    "connection reset by peer",
    "connection closed by peer",
    "socket",
    "broken pipe",
)

# Codes of NCCL for a wrong call, such as two ranks on one GPU: it would fail again after any restart.
_NCCL_REFUSALS = ("ncclinvalidusage", "ncclinvalidargument")


class LostPeer(Exception):
    """A collective operation failed because another worker, or the network to it, is lost."""


def is_lost_peer(error: RuntimeError) -> bool:
    """Return whether an error of torch says that a collective operation has lost a peer."""
    return any(word in str(error).lower() for word in _LOST_PEER_WORDS)


def nccl_refusal(error: RuntimeError) -> str | None:
    """Return NCCL's reason, if it refuses how the workers are connected; None for any other error."""
    lines = str(error).splitlines()
    if not any(code in line.lower() for line in lines for code in _NCCL_REFUSALS):
        return None
    return (lines[-1].removeprefix("Last error:").strip() or lines[0])[:200]


def failures_by_rank(error: Exception) -> Mapping[int, Exception]:
    """Return the error of each worker, by rank; an error of the whole group is under -1."""
    from ray.train import ControllerError, WorkerGroupError

    if isinstance(error, WorkerGroupError):
        return error.worker_failures
    return {-1: error.controller_failure if isinstance(error, ControllerError) else error}


def describe_loss(failures: Mapping[int, Exception], group_error: Exception) -> str:
    """Describe the loss of a worker.

    Args:
        failures: error of each worker that failed, by rank.
        group_error: error of the whole group, with the tracebacks of all workers.

    Raises:
        PipelineError: one of the workers raised it.
        Exception: `group_error`, if a worker raised an error that is a defect.
    """
    from ray.exceptions import RayError
    from ray.train.v2._internal.exceptions import (
        WorkerGroupStartupFailedError,
        WorkerHealthCheckFailedError,
        WorkerHealthCheckTimeoutError,
    )

    for error in failures.values():
        if isinstance(error, PipelineError):
            raise error
    lost = (
        RayError,
        LostPeer,
        WorkerHealthCheckFailedError,
        WorkerHealthCheckTimeoutError,
        WorkerGroupStartupFailedError,
    )
    if any(not isinstance(error, lost) for error in failures.values()):
        raise group_error
    # A rank that lost its peer is not the cause, so another rank is described if there is one.
    rank, first = min(failures.items(), key=lambda item: (isinstance(item[1], LostPeer), item[0]))
    cause = getattr(first, "health_check_failure", first)
    return f"rank {rank}: {type(cause).__name__}: {str(cause).splitlines()[0][:200]}"
