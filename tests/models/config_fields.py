"""Change every setting of config.json of every family, and compare with transformers.

    python -m tests.models.config_fields [FAMILY ...] > lines

prints lines of config_fields.md.
"""

import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
from huggingface_hub.errors import StrictDataclassError

from pipeline.errors import MODEL_FAILURES, ModelError
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.spec.families import DECODER_FAMILIES
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.every_family import FAMILIES, config_of, save_family, texts_of, vectors_alone
from tests.models.folders import edit_json

TABLE = Path(__file__).with_suffix(".md")
COMPUTED, REFUSED, WITHOUT_EFFECT, OTHER = "computed", "refused", "without effect", "other vectors"
VERDICTS = (COMPUTED, REFUSED, WITHOUT_EFFECT)
NOT_CHANGED = (
    *("_name_or_path", "architectures", "dtype", "id2label", "label2id", "model_type"),
    *("problem_type", "transformers_version"),
)
"""settings of all families that name classes, labels and versions, and the type of stored weights"""
UNREAD: Mapping[str, Mapping[str, Any]] = {
    "nomic_bert": {
        "activation_function": "geglu",
        "causal": True,
        "mlp_fc1_bias": True,
        "num_experts": 8,
        "parallel_block": True,
        "prenorm": True,
        "rotary_emb_fraction": 0.5,
        "rotary_emb_interleaved": True,
        "rotary_emb_scale_base": 512,
        "rotary_scaling_factor": 2.0,
        "scale_attn_weights": False,
        "use_rms_norm": True,
    },
    "gte": {"layer_norm_type": "rms_norm", "logn_attention_scale": True},
    "reformer": {"hash_seed": None},
}
"""settings that transformers does not read, with values that change vectors by the models' own code"""
_FAILURES = (*MODEL_FAILURES, OSError, StrictDataclassError)
_TEXTS = texts_of(7, 60, seed=3)
_MAX_TOKENS = 128  # small batches take less time
_ROPES: Mapping[str, Mapping[str, Any]] = {
    "rope_theta": {"rope_type": "default", "rope_theta": 77.0},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "rope_theta": 10_000.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [2.0] * 6,
        "long_factor": [4.0] * 6,
        "factor": 4.0,
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": 64,
    },
    "partial_rotary_factor": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    "type_alone": {"rope_type": "default"},
}
_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "attention_type": ("block_sparse", "original_full", "relative_shift", "factorized"),
    "attention_types": ([[["local", "global", "local"], 1]],),
    "attn_type": ("bi", "uni"),
    "default_language": ("en_XX", "de_DE"),
    "encoder_attention_type": ("local", "transient-global"),
    "feed_forward_proj": ("relu", "gated-gelu"),
    "normalization_type": ("no_norm", "layer_norm"),
    "pooling_type": ("mean", "max"),
    "pos_att_type": (None, ["c2p", "p2c"]),
    "position_embedding_type": ("absolute", "relative_key", "rope"),
    "topk_method": ("greedy", "group_limited_greedy"),
    "use_bidirectional_attention": (None, True, "all"),
}
"""settings with few values"""
_OF_LAYERS: Mapping[str, tuple[Any, ...]] = {
    "layer_types": ("full_attention", "sliding_attention"),
    "no_rope_layers": (0, 1),
}
"""settings with one of few values for each layer"""


def changes_of(name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each setting of a family, and a change of config.json that gives it another value."""
    config = config_of(name)
    values = config.to_dict()
    types = {each.name: each.type for each in dataclasses.fields(type(config))}
    for key, value in values.items():
        if key == "rope_parameters":
            yield from _changed_ropes(value or {})
        elif key in _CHOICES:
            others = [other for other in _CHOICES[key] if other != value]
            yield from ((f"{key}={other}", {key: other}) for other in others)
        elif isinstance(value, Mapping) and value and key not in NOT_CHANGED:
            for inner, old in value.items():
                if inner not in NOT_CHANGED:
                    yield f"{key}.{inner}", {key: {**value, inner: _other(inner, old, type(old))}}
        elif key not in NOT_CHANGED:
            yield key, {key: _other(key, value, types.get(key))}
    yield "is_causal", {"is_causal": name not in DECODER_FAMILIES}
    if "position_embedding_type" not in values:
        yield "position_embedding_type", {"position_embedding_type": "relative_key"}
    for key, value in UNREAD.get(name, {}).items():
        yield key, {key: value}


def _changed_ropes(ropes: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield other rotary positions, for each kind of layers if they differ, and by older keys."""
    for label, rope in _ROPES.items():
        for kind in [kind for kind, part in ropes.items() if isinstance(part, Mapping)]:
            yield f"rope_parameters.{kind}.{label}", {"rope_parameters": {**ropes, kind: {**rope}}}
        yield f"rope_parameters.{label}", {"rope_parameters": {**rope}}
    yield "rope_theta", {"rope_parameters": ..., "rope_theta": 77.0}
    yield "rope_scaling", {"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 4.0}}


def _other(key: str, value: Any, kind: Any) -> Any:
    """Return another value of a setting whose type is `kind`."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1 if key.endswith("_id") or value < 4 else value // 2
        case float():
            return value * 2 + 0.25
        case str() if "act" in key or key == "afn":
            return "relu" if value != "relu" else "silu"
        case str():
            return next((other for other in get_args(kind) if other != value), "other")
        case [first, *rest]:
            if len(set(map(str, value))) > 1:
                return value[::-1]
            known = [other for other in _OF_LAYERS.get(key, ()) if other != first]
            return [known[0] if known else _other(key, first, type(first)), *rest]
    kinds = get_args(kind) or (kind,)  # types of a setting that is null or empty
    if any(get_origin(each) is list for each in kinds):
        return [0]
    return next((other for each, other in _OF_TYPES.items() if each in kinds), 3)


_OF_TYPES = {bool: True, int: 3, float: 0.75, str: "other", dict: {"a": 1}}


def verdict_of(name: str, folder: Path, base: np.ndarray, change: Mapping[str, Any]) -> str:
    """Say what an encoder does with a changed setting, compared with transformers.

    Args:
        name: family.
        folder: an encoder of the family; its config.json is changed.
        base: the vectors of its texts.
        change: keys of config.json with other values.
    """
    file = folder / "config.json"
    original = file.read_text()
    edit_json(file, **change)
    changed = file.read_text()
    try:
        found = _vectors(folder)
    except (ModelError, *_FAILURES):
        return REFUSED
    finally:
        file.write_text(original)
    file.write_text(changed)
    try:
        expected = vectors_alone(folder, _TEXTS)
    except _FAILURES:
        return OTHER
    finally:
        file.write_text(original)
    scale = np.abs(base).max()
    if found.shape != expected.shape or np.abs(found - expected).max() > 1e-4 * np.abs(expected).max():
        return OTHER
    is_changed = found.shape != base.shape or np.abs(found - base).max() > 1e-6 * scale
    return COMPUTED if is_changed else WITHOUT_EFFECT


def _vectors(folder: Path) -> np.ndarray:
    """Encode the texts."""
    settings = EncoderSettings(path=str(folder), pooling="mean")
    return load_encoder(settings, EncodeSettings(max_tokens=_MAX_TOKENS)).encode(_TEXTS)


def line_of(name: str) -> str:
    """Return the line of a family in the table."""
    found: dict[str, list[str]] = {verdict: [] for verdict in (*VERDICTS, OTHER)}
    with tempfile.TemporaryDirectory() as top:
        folder = save_family(name, Path(top))
        edit_json(folder / "tokenizer_config.json", model_max_length=_MAX_TOKENS)
        base = _vectors(folder)
        for label, change in changes_of(name):
            found[verdict_of(name, folder, base, change)].append(label)
    cells = [", ".join(f"`{label}`" for label in sorted(found[verdict])) for verdict in VERDICTS]
    if found[OTHER]:
        cells[0] += f" **OTHER: {', '.join(found[OTHER])}**"
    return f"| {name} | {' | '.join(cells)} |"


def table() -> dict[str, str]:
    """Read the lines of the table by family."""
    rows = TABLE.read_text().partition("|---|---|---|---|\n")[2].splitlines()
    return {row.split(" | ")[0].removeprefix("| "): row for row in rows}


if __name__ == "__main__":
    for family in sys.argv[1:] or FAMILIES:
        print(line_of(family), flush=True)
