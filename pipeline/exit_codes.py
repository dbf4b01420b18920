"""Exit codes of commands that end with an error, and remedies for a machine that lacks a resource.

The job boundary ends a command with the code of its error, and the metrics of nights count these codes.
"""

import errno
import os
import resource

from pipeline.errors import PipelineError, is_out_of_memory

_NO_THREAD_MESSAGE = "can't start new thread"  # Python raises a plain RuntimeError with this message
_INTERRUPTED = 130  # as in a shell: 128 + the number of SIGINT


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command that ends with this error: `error.exit_code`, or 70 for a defect."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    return 70 if describe_shortage(error) is None else 75


def describe_end(error: BaseException) -> str:
    """Return the sentence by which pages and events say why an error ended a night."""
    if isinstance(error, PipelineError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "stopped by a signal; the next run continues it"
    return describe_shortage(error) or f"{type(error).__name__}: {error}"


def describe_shortage(error: BaseException) -> str | None:
    """Describe the resource of this machine that has run out, and the remedy; None for any other error."""
    code = getattr(error, "errno", None)
    if code == errno.EAGAIN or (isinstance(error, RuntimeError) and _NO_THREAD_MESSAGE in str(error)):
        return (
            "this machine starts no further thread or process; end other programs, use fewer workers "
            "(cluster.workers), or raise the limit (ulimit -u, pids.max; ulimit -v of memory)"
        )
    if code in (errno.EMFILE, errno.ENFILE):
        return (
            f"no further file can be opened ({os.strerror(code)}); raise the limit (ulimit -n), or end "
            "other programs"
        )
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"no disk space or inodes are left ({error}); free some, or raise the limit (ulimit -f)"
    if is_out_of_memory(error):
        return f"no memory is left{_address_limit()}; free some, or use fewer workers (cluster.workers)"
    return None


def _address_limit() -> str:
    """Return a remark on this process's limit of address space, if it has one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return f" (ulimit -v allows {limit / (1 << 30):.1f} GiB: raise it)"
