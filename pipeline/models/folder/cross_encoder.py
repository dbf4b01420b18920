"""Cross-encoders: models that read two texts together, and have a score or classes for both.

Imports neither torch nor transformers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError

CROSS_ENCODER: Mapping[str, Any] = {
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
}
"""settings of the Transformer module of a cross-encoder of sentence-transformers"""
LIBRARY = "sentence_transformers"
"""key of config.json in which sentence-transformers looks up how to change the logits"""


def is_cross_encoder(folder: Path, st_config: Mapping[str, Any], *, allowed: bool) -> bool:
    """Return whether the folder is a cross-encoder. Raises ModelError if it is not allowed."""
    task = st_config.get("transformer_task", "feature-extraction")
    if task == "sequence-classification" and not allowed:
        raise ModelError(
            str(folder),
            "an encoder, which has a vector for each text",
            "a cross-encoder, which reads two texts together and has one score or class for both",
            "use the encoder that it was trained from, or another one",
        )
    if task not in ("feature-extraction", "sequence-classification"):
        raise ModelError(
            f"{folder}: transformer_task",
            "a Transformer module for feature-extraction",
            repr(task),
            "use an encoder of texts",
        )
    return bool(task == "sequence-classification")


def without_cross_encoder(st_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a Transformer module without the ones that make it a cross-encoder."""
    if st_config.get("transformer_task") != CROSS_ENCODER["transformer_task"]:
        return dict(st_config)
    return {key: value for key, value in st_config.items() if key not in CROSS_ENCODER}
