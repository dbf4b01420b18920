"""The errors that commands report, with their exit codes.

Most say where the error is, what was expected, what was found and what to do.
"""

import difflib
import errno
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar

MODEL_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""classes of errors that a model raises for a text that it cannot process; other errors, such as
OSError and MemoryError, have causes outside the text"""


_NO_MEMORY = ("cannot allocate memory", "can't allocate memory", "bad_alloc", "failed to map segment")
"""words in errors of the system and Arrow, of torch, of faiss, and of the loader of shared libraries"""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says, by its class or by the words of a library, that no memory is left."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    is_of_library = isinstance(error, ImportError | OSError | RuntimeError)
    return is_of_library and any(words in str(error).lower() for words in _NO_MEMORY)


def did_you_mean(name: str, known: Iterable[str], otherwise: str, *, most: int = 1) -> str:
    """Return a question that suggests the known names closest to `name`, as the remedy of an error.

    Args:
        name: the unknown name.
        known: the names that would be valid.
        otherwise: the remedy that is returned if no known name is close.
        most: largest number of names to suggest; if it is above 1, less similar names count as close.
    """
    near = difflib.get_close_matches(name, list(known), n=most, cutoff=0.6 if most == 1 else 0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise


class PipelineError(Exception):
    """Base of all errors that a person can act on.

    `exit_code` follows sysexits.h where one of its codes fits.
    """

    exit_code: ClassVar[int] = 70

    def facts(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)} if is_dataclass(self) else {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields: exceptions pickle their `args`, which dataclasses leave empty."""
        return _rebuild, (type(self), self.facts(), self.args)


def _rebuild(kind: type[PipelineError], values: dict[str, Any], arguments: tuple[Any, ...]) -> PipelineError:
    return kind(**values) if values else kind(*arguments)


@dataclass(eq=False)
class _ExplainedError(PipelineError):
    """Error whose message says where it is, what was expected, what was found and what to do."""

    where: str
    """a file, key or column"""
    expected: str
    found: str
    remedy: str
    """what to do next"""

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, found {self.found}; {self.remedy}"


class ConfigError(_ExplainedError):
    """The settings cannot be used."""

    exit_code = 2


class DataError(_ExplainedError):
    """The corpus or a stored file is invalid, missing or damaged."""

    exit_code = 3


class ModelError(_ExplainedError):
    """The encoder cannot be loaded or gives unusable vectors."""

    exit_code = 4


class TransientError(_ExplainedError):
    """Storage or network failed for longer than the deadline; running again may succeed."""

    exit_code = 75


@dataclass(eq=False)
class MissingFile(TransientError, FileNotFoundError):
    """A stored file does not exist. If the caller did not expect that, another process has removed it."""

    @classmethod
    def at(cls, where: str) -> "MissingFile":
        """Return the error for the file at this path or URI."""
        return cls(where, "a stored file", "no such file", "see what removes files there, and run again")

    def __post_init__(self) -> None:
        self.errno, self.filename = errno.ENOENT, self.where


class Defect(_ExplainedError):
    """An invariant of this program does not hold."""

    exit_code = 70


class QueryError(DataError):
    """A query that cannot be searched for: a vector of another dimension, unknown words, an unknown id."""


class SpaceMismatch(ModelError):
    """Vectors are in another space than expected."""


@dataclass(eq=False)
class GatesRefused(PipelineError):
    """A candidate failed a gate; nothing was published."""

    exit_code: ClassVar[int] = 5
    candidate: str
    refusals: tuple[str, ...]
    gates: dict[str, Any] = field(default_factory=dict)
    decisions: tuple[dict[str, Any], ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.candidate}: refused: {'; '.join(self.refusals)}. The published release is unchanged; "
            "see the candidate's report.html"
        )


class CandidateRefused(_ExplainedError):
    """A candidate that cannot be published any more, or whose gates do not pass; nothing was published."""

    exit_code = 5


@dataclass(eq=False)
class RootHeld(PipelineError):
    """The root is held at a release; nothing was published."""

    exit_code: ClassVar[int] = 0
    number: int
    since: str
    root: str
    reason: str = ""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"release {self.number} has been held since {self.since}{why}: nothing is published until "
            f"`manta releases release {self.root}`"
        )


@dataclass(eq=False)
class PublishConflict(PipelineError):
    """Another run published first; this one has changed nothing."""

    exit_code: ClassVar[int] = 0
    number: int
    winner: str

    def __str__(self) -> str:
        return (
            f"release {self.number} was published by another run meanwhile (manifest {self.winner[:12]}); "
            "this run has changed nothing"
        )
