"""What a faiss factory string makes: tried out empty, so that a bad one is refused before any vector is read."""

from dataclasses import dataclass

from pipeline.errors import ConfigError
from pipeline.index.kinds import HNSW_LINKS, _HNSW_BYTES  # noqa: F401
