"""Turn the errors of file systems, Arrow and the clients of object stores into the project's errors."""

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from pipeline.config import credentials_of
from pipeline.errors import ConfigError, DataError, MissingFile, PipelineError, TransientError
from pipeline.store.files.retry import StoreRefusal, is_of_client, is_transient, refusal

LEAVE_OUT = "; corpus.bad_files=skip leaves such files out"
"""End of the remedy of an error about a file of a corpus."""

_OF_SYSTEM = (OSError, pa.ArrowException, UnicodeDecodeError)
"""errors of the system, of Arrow, and of names that are not UTF-8"""


@contextlib.contextmanager
def storage_errors(where: str, leave_out: str = LEAVE_OUT) -> Iterator[None]:
    """Turn errors of storage in the block into errors of the project.

    Args:
        where: the file or folder, for the message.
        leave_out: end of the remedy, which says how to leave the file out instead of fixing it.

    Raises:
        TransientError: trying again may help (exit code 75).
        ConfigError: credentials are missing, or a client says that the store refuses them or the region (2).
        DataError: any other error (3).
    """
    try:
        yield
    except StoreRefusal as error:  # corpus.bad_files may leave out this file
        remedy = f"fix or remove the file, or its permissions{leave_out}"
        raise DataError(where, "a readable file", error.found, remedy) from error
    except MissingFile as error:
        raise _nothing_there(where) from error
    except PipelineError:
        raise
    except Exception as error:
        if not (isinstance(error, _OF_SYSTEM) or is_of_client(error)):
            raise
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
        if is_transient(error):
            raise TransientError(where, "an answer of the storage", found, "run again") from error
        if "redentials" in type(error).__name__:
            raise ConfigError(
                where,
                "valid credentials",
                found,
                f"check those that come from {credentials_of(where)}",
            ) from error
        if refused := refusal(error, where):
            raise refused from error
        if isinstance(error, FileNotFoundError):
            raise _nothing_there(where) from error
        raise DataError(
            where, "a readable file", found, f"fix or remove the file, or its permissions{leave_out}"
        ) from error


def _nothing_there(where: str) -> DataError:
    return DataError(where, "a file, a directory or a glob that matches", "nothing there", "check corpus.uri")
