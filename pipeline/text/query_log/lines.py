"""The lines of a query log: JSON objects, each a query that was drawn, without its text unless asked for."""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

_FLOAT32_BYTES = 4


class LoggedQuery(BaseModel):
    """A line of a query log."""

    model_config = ConfigDict(frozen=True, strict=True)

    time: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}Z$")
    """hour in which the query was answered, in UTC, like 2026-11-29T14Z"""
    client: str = Field(pattern=r"^[0-9a-f]{8}-[0-9a-f]{16}$")
    """number of a process and a day, and a keyed hash of who asked; the key is never stored"""
    draw: int = Field(ge=0)
    """random number: the lines of a client with the lowest ones are a sample of its queries"""
    per_client: int = Field(ge=1)
    """number of lines of a client and a day that are kept"""
    release: int
    """number of the release that answered"""
    space_id: str
    """space of the vector"""
    filtered: bool
    """whether only the rows that pass a filter were searched"""
    k: int = Field(ge=1)
    """number of answers that were asked for"""
    answers: int = Field(ge=0)
    """number of answers"""
    score: float | None
    """score of the best answer; None without an answer"""
    vector: str
    """base64 of the raw vector of the query, float32 with the low byte first"""
    text: str | None = None
    """text of the query, if the service logs texts"""

    @field_validator("vector")
    @classmethod
    def _check_vector(cls, vector: str) -> str:
        try:
            content = base64.b64decode(vector, validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from None
        if not content or len(content) % _FLOAT32_BYTES:
            raise ValueError("not a vector")
        return vector

    @property
    def day(self) -> str:
        """Day of the query, in UTC."""
        return self.time[:10]

    def to_line(self) -> str:
        """Return the line, with its end."""
        return json.dumps(self.model_dump(exclude_none=True) | {"score": self.score}) + "\n"

    def array(self) -> np.ndarray:
        """Return the vector, (d,) float32."""
        return np.frombuffer(base64.b64decode(self.vector), "<f4").astype(np.float32)


def encode_vector(vector: np.ndarray) -> str:
    """Return a vector (d,) as the text of the field `vector`."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()


@dataclass
class LineReader:
    """Reads lines, and counts lines that cannot be read, such as one that a kill cut off."""

    damaged: int = 0
    """number of lines that were not read so far"""

    def read(self, lines: Iterable[bytes]) -> Iterator[LoggedQuery]:
        """Yield the queries of lines."""
        for line in lines:
            try:
                yield LoggedQuery.model_validate_json(line)
            except ValidationError:
                self.damaged += 1
