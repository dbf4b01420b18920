"""Read sizes and options of a Transformer from config.json, for `families`.

Values that the packed forward pass does not compute raise `OtherModel`. Imports neither torch nor
transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.models.layers.architecture import LayerAttention

Config = Mapping[str, Any]

FULL, NEAR = "full_attention", "sliding_attention"
"""kinds of attention in `layer_types`: to all tokens, and to near ones"""
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""name of an activation in `linear.ACTIVATIONS`, by its name in config.json"""


class OtherModel(Exception):
    """The packed forward pass does not compute this model; the padded one runs it."""


def require(condition: bool) -> None:
    """Raise OtherModel unless the condition is true."""
    if not condition:
        raise OtherModel


def size(config: Config, name: str) -> int:
    """Read a whole number above 0, which must be in config.json."""
    value = config.get(name)
    require(type(value) is int and value > 0)
    assert isinstance(value, int)
    return value


def number(config: Config, name: str, default: float) -> float:
    """Read a number. default: its value if the key is missing."""
    value = config.get(name, default)
    require(type(value) in (int, float))
    return float(value)


def flag(config: Config, name: str) -> bool:
    """Read a truth value, False if the key is missing or null."""
    value = config.get(name)
    require(value is None or isinstance(value, bool))
    return bool(value)


def activation(config: Config, name: str, default: str) -> str:
    """Read an activation, a key of `linear.ACTIVATIONS`. default: its name if the key is missing."""
    value = config.get(name, default)
    require(isinstance(value, str) and value in _ACTIVATIONS)
    return _ACTIVATIONS[value]


def sizes(config: Config) -> dict[str, Any]:
    """Read the sizes of a Transformer with rotary positions, by their names in `Architecture`."""
    width, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    has_fewer, has_own = (config.get(name) is not None for name in ("num_key_value_heads", "head_dim"))
    key_heads = size(config, "num_key_value_heads") if has_fewer else heads
    head_width = size(config, "head_dim") if has_own else width // heads
    require(heads % key_heads == head_width % 2 == 0)
    return {
        "width": width,
        "inner": size(config, "intermediate_size"),
        "heads": heads,
        "key_heads": key_heads,
        "head_width": head_width,
        "vocabulary": size(config, "vocab_size"),
    }


def kinds(config: Config, default: Sequence[str]) -> Sequence[str]:
    """Read the kind of attention of each layer. default: the kinds if `layer_types` is missing."""
    found = config.get("layer_types") or default
    require(isinstance(found, Sequence) and len(found) == len(default) and {*found} <= {FULL, NEAR})
    return found


def by_kind(found: Sequence[str], full: LayerAttention, near: LayerAttention) -> tuple[LayerAttention, ...]:
    """Return the attention of each layer for its kind."""
    return tuple(full if kind == FULL else near for kind in found)


def rotary_base(config: Config, default: float) -> float:
    """Read the base of the rotary positions of all layers. default: the base if config.json has none."""
    ropes = _rope_parameters(config)
    require(not {FULL, NEAR} & ropes.keys())
    return _base(ropes, config, "rope_theta", default)


def rotary_bases(config: Config, full: tuple[str, float], near: tuple[str, float]) -> tuple[float, float]:
    """Read the bases of the rotary positions of both kinds of attention.

    Args:
        config: config.json.
        full: key of the base in files from before transformers 5, and its default.
        near: the same for attention to near tokens.
    """
    ropes = _rope_parameters(config)
    require(ropes.keys() <= {FULL, NEAR})
    one, other = (
        _base(ropes.get(kind) or {}, config, *older) for kind, older in ((FULL, full), (NEAR, near))
    )
    return one, other


def _rope_parameters(config: Config) -> Mapping[str, Any]:
    ropes = config.get("rope_parameters") or {}
    require(isinstance(ropes, Mapping) and not config.get("rope_scaling"))
    require(config.get("partial_rotary_factor", 1.0) == 1.0)
    return ropes


def _base(rope: Any, config: Config, older: str, default: float) -> float:
    require(isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type", "default")) == "default")
    require(rope.get("partial_rotary_factor", 1.0) == 1.0)
    return number(rope, "rope_theta", number(config, older, default))
