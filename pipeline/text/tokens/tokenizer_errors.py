"""Turn errors of the tokenizers library, which are bare exceptions and Rust panics, into ModelError."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import ModelError


@contextmanager
def tokenizer_errors(where: Path, expected: str) -> Iterator[None]:
    """Raise ModelError if the library fails in the block, whatever class of errors it uses.

    A panic derives from BaseException, so that nothing else catches it.

    Args:
        where: file or folder of the tokenizer.
        expected: what the block needs of the tokenizer, for the message.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ModelError(
            str(where), expected, " ".join(str(error).split())[:200], "restore the tokenizer's files"
        ) from None
