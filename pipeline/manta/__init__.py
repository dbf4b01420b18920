"""Manta in Python: text to vectors, published releases, and a vector column for any Ray dataset.

    import manta

    vectors = manta.encode(["a text", "another"])          # all-MiniLM-L6-v2, unless another encoder is named
    release = manta.open_release("s3://bucket/index")      # published by `manta nightly`
    release.search(["a question"], k=3)
    release.get("an id")                                   # the row, as a dict

Importing this package is fast: each name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.flows.encode.encode import EncodeBlocks
    from pipeline.index.search.search import open_release
    from pipeline.models.inference.encoder import encode, load_encoder

    __version__: str

__all__ = ["EncodeBlocks", "__version__", "encode", "load_encoder", "open_release"]

_MODULES = {
    "EncodeBlocks": "pipeline.flows.encode.encode",
    "encode": "pipeline.models.inference.encoder",
    "load_encoder": "pipeline.models.inference.encoder",
    "open_release": "pipeline.index.search.search",
}


def __getattr__(name: str) -> Any:
    """Load an exported name. Raises ImportError if another package hides one of Manta's packages."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("manta-embeddings")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .shadowing import check_packages

    check_packages()
    found = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
