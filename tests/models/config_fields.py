"""Change every setting of config.json of every family of encoders, and compare with transformers.

    python -m tests.models.config_fields [FAMILY ...]

prints the lines of config_fields.md. Takes half an hour for all families.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from pipeline.errors import MODEL_FAILURES, ModelError
from tests.models.every_family import config_of, save_family, texts_of, vectors_alone
from tests.models.folders import edit_json, encoder_at

TABLE = Path(__file__).with_suffix(".md")
COMPUTED, REFUSED, WITHOUT_EFFECT, OTHER = "computed", "refused", "without effect", "other vectors"
VERDICTS = (COMPUTED, REFUSED, WITHOUT_EFFECT)
_TEXTS = texts_of(7, 60, seed=3)
_DEFAULTS = frozenset(transformers.PreTrainedConfig().to_dict())
"""settings that all families have, such as names of classes"""
_OF_ALL = (
    "is_decoder",
    "is_encoder_decoder",
    "output_hidden_states",
    "return_dict",
    "chunk_size_feed_forward",
)
_ROPES: Mapping[str, Mapping[str, Any]] = {
    "rope_parameters.rope_theta": {"rope_type": "default", "rope_theta": 77.0},
    "rope_parameters.linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
    "rope_parameters.dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
    "rope_parameters.yarn": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0},
}
_FAILURES = (*MODEL_FAILURES, OSError)
_IGNORED: Mapping[str, Mapping[str, Any]] = {
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


def changes_of(name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each setting of a family, and a change of config.json that gives it another value."""
    config = config_of(name).to_dict()
    for key, value in config.items():
        if key == "rope_parameters":
            for label, rope in _ROPES.items():
                yield label, {key: {**rope}}
        elif (key not in _DEFAULTS or key in _OF_ALL) and (other := _other(key, value)) is not None:
            yield key, {key: other}
    yield "is_causal", {"is_causal": name not in ("llama", "mistral", "qwen2", "qwen3")}
    if "position_embedding_type" not in config:
        yield "position_embedding_type", {"position_embedding_type": "relative_key"}
    for key, value in _IGNORED.get(name, {}).items():
        yield key, {key: value}


def _other(key: str, value: Any) -> Any:
    """Return another value of the same type; None for types without a rule."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1 if key.endswith("_id") or value < 4 else value // 2
        case float():
            return value * 2 + 0.25
        case str() if "act" in key or key == "hidden_activation":
            return "relu" if value != "relu" else "silu"
        case [_, *_] if len(set(map(str, value))) > 1:
            return value[::-1]
    return None


def verdict_of(name: str, folder: Path, base: np.ndarray, change: Mapping[str, Any]) -> str:
    """Say what an encoder does with a changed setting, compared with transformers.

    Args:
        name: family.
        folder: an encoder of the family; its config.json is changed.
        base: the vectors of its texts.
        change: keys of config.json with other values.
    """
    original = (folder / "config.json").read_text()
    edit_json(folder / "config.json", **change)
    try:
        found = encoder_at(folder, pooling="mean").encode(_TEXTS)
    except (ModelError, *_FAILURES):
        return REFUSED
    finally:
        changed = (folder / "config.json").read_text()
        (folder / "config.json").write_text(original)
    (folder / "config.json").write_text(changed)
    try:
        expected = vectors_alone(folder, _TEXTS)
    except _FAILURES:
        return OTHER
    finally:
        (folder / "config.json").write_text(original)
    scale = np.abs(base).max()
    if found.shape != expected.shape or np.abs(found - expected).max() > 1e-4 * np.abs(expected).max():
        return OTHER
    is_changed = found.shape != base.shape or np.abs(found - base).max() > 1e-6 * scale
    return COMPUTED if is_changed else WITHOUT_EFFECT


_FAILURES = (
    ValueError,
    RuntimeError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    AssertionError,
    OSError,
)


def line_of(name: str) -> str:
    """Return the line of a family in the table."""
    found: dict[str, list[str]] = {verdict: [] for verdict in (*VERDICTS, OTHER)}
    with tempfile.TemporaryDirectory() as top:
        folder = save_family(name, Path(top))
        base = encoder_at(folder, pooling="mean").encode(_TEXTS)
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
    for family in sys.argv[1:] or table():
        print(line_of(family), flush=True)
