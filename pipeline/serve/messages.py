"""Bodies of the requests and responses of the service."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.errors import did_you_mean
from pipeline.serve.comparisons import Differences

MAX_QUERIES = 256
"""Largest number of queries in one request."""
MAX_ANSWERS = 1_000
"""Largest number of answers to one query."""
MAX_ROWS = 25_600
"""Largest number of answers to all queries of a request."""
MAX_BODY_BYTES = 32 << 20
"""Largest body of a request: 256 vectors of 4,096 components take half of it."""
MAX_CHARACTERS = 20_000
"""Largest length of a query or a filter; encoders read at most some thousand tokens."""
_MAX_SHOWN_KEY = 80  # characters
_MAX_COMPONENTS = 1 << 16  # components of a vector; encoders have at most some thousand

# Without fail_fast, a body with a million wrong numbers would cost the memory of a million errors.
_Queries = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_QUERIES)]
_Vector = Annotated[list[float], Field(fail_fast=True, max_length=_MAX_COMPONENTS)]
_Vectors = Annotated[list[_Vector], Field(fail_fast=True, min_length=1, max_length=MAX_QUERIES)]


class SearchRequest(BaseModel):
    """Body of a search: texts, or vectors of the release's encoder."""

    model_config = ConfigDict(extra="forbid", strict=True)

    queries: _Queries | None = Field(None, description="texts")
    vectors: _Vectors | None = Field(
        None, description="raw vectors of the release's encoder, instead of texts"
    )
    space_id: str | None = Field(
        None,
        description="space of the queries, from GET /release. If the release is of another space, the answer "
        "is 409. Required with vectors.",
    )
    k: int = Field(10, ge=1, le=MAX_ANSWERS, description="answers per query")
    where: str | None = Field(
        None,
        max_length=MAX_CHARACTERS,
        description="a filter on the id and kept columns, such as price < 10 and lang in ('de', 'en')",
    )
    group: bool = Field(False, description="answer with documents: of the chunks of each, only the best one")
    texts: bool = Field(False, description="add the text of each answer")

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, body: Any) -> Any:
        """Refuse the first unknown key, of which `extra` alone would name all."""
        keys = body if isinstance(body, dict) else ()
        unknown = next((key for key in keys if key not in cls.model_fields), None)
        if unknown is not None:
            name = unknown[:_MAX_SHOWN_KEY]
            raise ValueError(f"{name}: unknown; {did_you_mean(name, cls.model_fields, 'remove it')}")
        return body

    @model_validator(mode="after")
    def _check_queries(self) -> Self:
        if (self.queries is None) == (self.vectors is None):
            raise ValueError("give either queries or vectors")
        if self.vectors is not None and self.space_id is None:
            raise ValueError("vectors need a space_id: that of the encoder that made them (GET /release)")
        if self.k * len(self.queries or self.vectors or ()) > MAX_ROWS:
            raise ValueError(f"more than {MAX_ROWS:,} answers in all: send fewer queries, or a smaller k")
        if any(len(query) > MAX_CHARACTERS for query in self.queries or ()):
            raise ValueError(f"a query has more than {MAX_CHARACTERS:,} characters")
        return self


class FoundRow(BaseModel):
    """One answer, with the columns that corpus.keep names."""

    model_config = ConfigDict(extra="allow")

    rank: int
    """from 1"""
    id: str | int
    score: float
    """cosine"""


class SearchResponse(BaseModel):
    """Answers to each query, best first, all from one release."""

    release: int
    space_id: str
    answers: list[list[FoundRow]]


class ShadowReport(BaseModel):
    """State and results of a shadow."""

    name: str
    """its release or candidate"""
    state: str
    compared_with: int
    """number of the release that answers; the comparison starts again when another one does"""
    outcomes: dict[str, int]
    """number of requests by outcome: compared, failed, dropped, not comparable"""
    differences: Differences
    verdict: str


class CanaryReport(BaseModel):
    """State of a canary."""

    state: str
    release: int | None
    """number of the release that is being tried; null without one"""
    share: float
    """proportion of the searches that it answers"""
    answered: int
    failed: int
    """searches that the release of before answered, because the new one failed"""
    returned: int | None
    """number of the current release if the service has returned from it to the release of before"""


class ServedRelease(BaseModel):
    """The release that answers."""

    release: int
    space_id: str
    rows: int
    """rows that can be found with the request's token"""
    dim: int
    """components of a raw vector"""
    index: str
    """kind of the index"""
    published_at: str | None
    encoder: str
    gates: dict[str, Any]
    """empty if the token has a filter, because gates describe all rows"""
    refused: int | None
    """number of the root's current release if it is of another space and was therefore refused"""
    shadow: ShadowReport | None = None
    """null without --shadow, and if the token has a filter"""
    canary: CanaryReport | None = None
    """null without --canary, and if the token has a filter"""


class Health(BaseModel):
    """State of the service."""

    status: str
    release: int
    checked_s: float
    """seconds since the root's current release was last followed, or refused, without an error"""
    refused_release: int | None
    """number of the root's current release if it is of another space and was therefore refused"""


class Problem(BaseModel):
    """An error."""

    error: str
    message: str
