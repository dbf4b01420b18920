"""Queries of a log, for tests."""

from typing import Any

import numpy as np

from pipeline.text.query_log.lines import LoggedQuery, encode_vector


def logged(client: str = "a", draw: int = 0, **fields: Any) -> LoggedQuery:
    """Return a logged query; `client` is a short name of it."""
    vector = fields.pop("vector", np.array([1.0, draw], np.float32))
    usual = {
        "time": "2026-11-29T10Z",
        "per_client": 4,
        "release": 1,
        "space_id": "space",
        "filtered": False,
        "k": 10,
        "answers": 10,
        "score": 0.5,
        "vector": encode_vector(np.asarray(vector)),
    }
    return LoggedQuery(
        client=f"{'0' * 8}-{client.encode().hex().zfill(16)}", draw=draw, **{**usual, **fields}
    )
