"""Adapter of encoders for the benchmark package `mteb` (Muennighoff et al. 2023), versions 2.x.

import mteb
from pipeline.evaluate.mteb import mteb_model
mteb.evaluate(mteb_model(load_encoder(EncoderSettings(), EncodeSettings())), mteb.get_tasks(["STS12"]))
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np

from pipeline.errors import ConfigError
from pipeline.evaluate.similarity import prepare_vectors, row_similarities, similarity_matrix
from pipeline.evaluate.source import or_blank
from pipeline.evaluate.task import Similarity

MtebBatch = Mapping[str, Any]
VectorMap = Callable[[np.ndarray], np.ndarray]


class TextEncoder(Protocol):
    """The methods of an encoder that the adapter needs; see `pipeline.models.inference.encoder.Encoder`."""

    dim: int
    space_id: str
    max_length: int

    def encode(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        """Encode n texts: (n, dim)."""


class MtebModel:
    """Implementation of mteb's EncoderProtocol, with the similarity that the encoder's folder sets.

    Queries get the prompt of the encoder's settings; mteb's prompts for its tasks are not used.
    """

    def __init__(self, encoder: TextEncoder, transform: VectorMap | None, name: str) -> None:
        self._encoder, self._transform, self._name = encoder, transform, name
        self._similarity = cast(Similarity, getattr(encoder, "similarity", "cosine"))

    def encode(self, inputs: Iterable[MtebBatch], *, prompt_type: str | None = None, **_: Any) -> np.ndarray:
        """Encode the column `text` of all batches: (n, d) float32; a missing or blank text is one blank."""
        texts = [or_blank(text) for batch in inputs for text in batch["text"]]
        vectors = self._encoder.encode(texts, query=getattr(prompt_type, "value", prompt_type) == "query")
        return vectors if self._transform is None else np.asarray(self._transform(vectors), np.float32)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compare each of n rows with each of m rows: a tensor (n, m); a single vector counts as one row."""
        left, right = (
            prepare_vectors(self._similarity, _matrix(side)) for side in (embeddings1, embeddings2)
        )
        return _tensor(similarity_matrix(self._similarity, left, right))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities of paired rows as a tensor (n,)."""
        return _tensor(row_similarities(self._similarity, _matrix(embeddings1), _matrix(embeddings2)))

    @cached_property
    def mteb_model_meta(self) -> Any:
        """mteb's description of the model. Its revision joins the ids of the vector space and transform."""
        suffix = getattr(self._transform, "transform_id", "")
        empty = _mteb().models.ModelMeta.create_empty()
        return type(empty).model_validate(
            {
                **empty.model_dump(),
                "name": self._name,
                "revision": f"{self._encoder.space_id[:16]}{'-' if suffix else ''}{suffix[:16]}",
                "max_tokens": self._encoder.max_length,
                "embed_dim": int(getattr(self._transform, "k", self._encoder.dim)),
                "framework": ["PyTorch"],
                "similarity_fn_name": self._similarity,
            }
        )


def mteb_model(
    encoder: TextEncoder, transform: VectorMap | None = None, name: str = "manta/encoder"
) -> MtebModel:
    """Create a model for mteb.evaluate.

    Args:
        encoder: the encoder.
        transform: function that is applied to the vectors, or None.
        name: "organisation/model", for mteb's results.

    Raises:
        ConfigError: mteb is not installed.
    """
    _mteb()
    return MtebModel(encoder, transform, name)


def _mteb() -> ModuleType:
    try:
        return importlib.import_module("mteb")
    except ImportError as error:
        raise ConfigError(
            "mteb",
            "the package mteb, version 2",
            f"{error}",
            'install the extra: pip install "manta-embeddings[bench]"',
        ) from None


def _matrix(embeddings: Any) -> np.ndarray:
    """Return embeddings as an array (n, d); a single vector becomes one row."""
    return np.atleast_2d(np.asarray(embeddings))


def _tensor(x: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(x, np.float32))
