"""An index of Elasticsearch: documents with id, vector (`dense_vector`) and kept columns."""

import os
from typing import Any, ClassVar

from pipeline.errors import PipelineError
from pipeline.targets.opensearch import REMEDY, OpenSearchTarget
from pipeline.targets.requests import is_refusal
from pipeline.targets.target import TARGETS


@TARGETS.register("elasticsearch")
class ElasticsearchTarget(OpenSearchTarget):
    """An index NAME. The API key is in ELASTICSEARCH_API_KEY, or user and password are in ELASTICSEARCH_USER
    and ELASTICSEARCH_PASSWORD.
    """

    extra: ClassVar[str | None] = "elasticsearch"
    credentials: ClassVar[str] = "ELASTICSEARCH_API_KEY, or ELASTICSEARCH_USER and ELASTICSEARCH_PASSWORD"
    module: ClassVar[str] = "elasticsearch"
    settings: ClassVar[dict[str, Any]] = {}

    def connect(self) -> Any:
        """Return the client."""
        user, password = (os.environ.get(f"ELASTICSEARCH_{part}") for part in ("USER", "PASSWORD"))
        return self._module.Elasticsearch(
            [self.uri],
            api_key=os.environ.get("ELASTICSEARCH_API_KEY"),
            basic_auth=(user, password) if user and password else None,
            request_timeout=60,
        )

    def vector_type(self, dim: int) -> dict[str, Any]:
        """Return the type of the field of vectors."""
        return {"type": "dense_vector", "dims": dim, "index": True, "similarity": "cosine"}

    def explain(self, error: Exception) -> PipelineError | None:
        """Distinguish requests that the server refuses from a server that does not answer."""
        module, transport = self._module, self.client("elastic_transport")
        is_refused = isinstance(error, module.ApiError) and is_refusal(error.status_code)
        is_own = isinstance(error, module.UnsupportedProductError | transport.TlsError)
        if is_refused or is_own:
            return self.refused(error, REMEDY)
        return self.unreachable(error) if isinstance(error, module.ApiError | module.TransportError) else None
