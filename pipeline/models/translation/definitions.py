"""Words with their definitions, from which templates are generated."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """A word and its definition in a dictionary."""

    word: str
    definition: str
