"""Names of the tensors in the published checkpoints of each packed family, without ".weight"."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pipeline.models.spec.architecture import Architecture


@dataclass(frozen=True)
class SublayerNames:
    """Names of tensors of an attention or feed-forward layer, which computes x + output(...inputs(x)...)."""

    inputs: tuple[str, ...]
    """maps of the input: query, key and value; or the activated map and, if there are gates, the map that
    multiplies it. If several maps have a single name, they are stored as one map, with rows in this order
    """
    output: str
    norm_before: str | None = None
    """normalization of the input"""
    norm_of_output: str | None = None
    """normalization of the output, before the residual sum"""
    norm_of_sum: str | None = None
    """normalization of the residual sum"""

    @property
    def norms(self) -> tuple[str, ...]:
        """Names of the normalizations, in the order of their application."""
        return tuple(filter(None, (self.norm_before, self.norm_of_output, self.norm_of_sum)))


@dataclass(frozen=True)
class Names:
    """Names in a family. Names of layer {i} begin with `layer`."""

    words: str
    layer: str
    attention: SublayerNames
    feed_forward: SublayerNames
    positions: str | None = None
    token_types: str | None = None
    embedding_norm: str | None = None
    query_norm: str | None = None
    """normalization of each head of the queries"""
    key_norm: str | None = None
    final_norm: str | None = None
    relative_bias: str | None = None
    """table of attention biases by distance (MPNet)"""
    gated: bool = False
    """the feed-forward layer has gates (Shazeer 2020)"""
    gate_second: bool = False
    """if one map has both halves, the rows of the activated half come second"""
    first_norm: bool = True
    """layer 0 has the norm before its attention; ModernBERT has none there"""

    def attention_of(self, number: int) -> SublayerNames:
        """Return the names in the attention of a layer."""
        skips = number == 0 and not self.first_norm
        return replace(self.attention, norm_before=None) if skips else self.attention


_BERT = Names(
    words="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    token_types="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layer="encoder.layer.{i}.",
    attention=SublayerNames(
        ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output.dense",
        norm_of_sum="attention.output.LayerNorm",
    ),
    feed_forward=SublayerNames(("intermediate.dense",), "output.dense", norm_of_sum="output.LayerNorm"),
)
_LLAMA = Names(
    words="embed_tokens",
    layer="layers.{i}.",
    attention=SublayerNames(
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attn.o_proj",
        norm_before="input_layernorm",
    ),
    feed_forward=SublayerNames(
        ("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj", norm_before="post_attention_layernorm"
    ),
    final_norm="norm",
    gated=True,
)
_QWEN3 = replace(_LLAMA, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
NAMES: Mapping[str, Names] = {
    "bert": _BERT,
    "roberta": _BERT,
    "mpnet": replace(
        _BERT,
        attention=SublayerNames(
            ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
            "attention.attn.o",
            norm_of_sum="attention.LayerNorm",
        ),
        relative_bias="encoder.relative_attention_bias",
    ),
    "distilbert": replace(
        _BERT,
        layer="transformer.layer.{i}.",
        attention=SublayerNames(
            ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            "attention.out_lin",
            norm_of_sum="sa_layer_norm",
        ),
        feed_forward=SublayerNames(("ffn.lin1",), "ffn.lin2", norm_of_sum="output_layer_norm"),
    ),
    "modernbert": Names(
        words="embeddings.tok_embeddings",
        embedding_norm="embeddings.norm",
        layer="layers.{i}.",
        attention=SublayerNames(("attn.Wqkv",), "attn.Wo", norm_before="attn_norm"),
        feed_forward=SublayerNames(("mlp.Wi",), "mlp.Wo", norm_before="mlp_norm"),
        final_norm="final_norm",
        gated=True,
        first_norm=False,
    ),
    "nomic_bert": Names(
        words="embeddings.word_embeddings",
        token_types="embeddings.token_type_embeddings",
        embedding_norm="emb_ln",
        layer="encoder.layers.{i}.",
        attention=SublayerNames(("attn.Wqkv",), "attn.out_proj", norm_of_sum="norm1"),
        feed_forward=SublayerNames(("mlp.fc12", "mlp.fc11"), "mlp.fc2", norm_of_sum="norm2"),
        gated=True,
    ),
    "gte": Names(
        words="embeddings.word_embeddings",
        token_types="embeddings.token_type_embeddings",
        embedding_norm="embeddings.LayerNorm",
        layer="encoder.layer.{i}.",
        attention=SublayerNames(("attention.qkv_proj",), "attention.o_proj", norm_of_sum="attn_ln"),
        feed_forward=SublayerNames(("mlp.up_gate_proj",), "mlp.down_proj", norm_of_sum="mlp_ln"),
        gated=True,
        gate_second=True,
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _QWEN3,
    "gemma3": replace(
        _QWEN3,
        attention=replace(_LLAMA.attention, norm_of_output="post_attention_layernorm"),
        feed_forward=replace(
            _LLAMA.feed_forward,
            norm_before="pre_feedforward_layernorm",
            norm_of_output="post_feedforward_layernorm",
        ),
    ),
}
"""by family"""


def tensor_names(names: Names, architecture: Architecture) -> list[str]:
    """List the names of all tensors of an encoder, without the prefix of its checkpoint."""
    tables = [names.words]
    if names.positions and architecture.positions:
        tables.append(names.positions)
    if names.token_types and architecture.token_types:
        tables.append(names.token_types)
    return [
        *(f"{table}.weight" for table in tables),
        *_parts(filter(None, [names.embedding_norm]), architecture.biases.norms),
        *(name for number in range(architecture.layers) for name in _of_layer(names, architecture, number)),
        *_parts(filter(None, [names.final_norm]), architecture.biases.norms),
        *([f"{names.relative_bias}.weight"] if names.relative_bias else []),
    ]


def _of_layer(names: Names, architecture: Architecture, number: int) -> Iterator[str]:
    """Yield the names of the tensors of a layer."""
    attention, feed_forward, biases = names.attention_of(number), names.feed_forward, architecture.biases
    parts = [
        *_parts(attention.inputs, biases.inputs),
        *_parts(filter(None, [names.query_norm, names.key_norm]), False),
        *_parts([attention.output], biases.attention),
        *_parts(attention.norms, biases.norms),
        *_parts(feed_forward.inputs, biases.inner),
        *_parts([feed_forward.output], biases.outer),
        *_parts(feed_forward.norms, biases.norms),
    ]
    prefix = names.layer.format(i=number)
    return (prefix + part for part in parts)


def _parts(names: Iterable[str], has_bias: bool) -> Iterator[str]:
    """Yield the names of the tensors of linear maps or normalizations."""
    return (f"{name}.{part}" for name in names for part in ("weight", "bias")[: 1 + has_bias])
