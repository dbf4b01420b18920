"""Small random models of the families with rotary positions, saved as their authors publish them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from tests.models.folders import LONG, add_noise, byte_level, edit_json, save_tokenizer, word_piece

LONGEST = 8_192  # tokens that the encoders read
_SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": LONGEST,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_GEMMA = _GROUPED | {"head_dim": 32, "sliding_window": 64, "query_pre_attn_scalar": 24}
_GEMMA |= {"layer_types": ["sliding_attention", "full_attention"] * 2}


@dataclass(frozen=True)
class RotaryFamily:
    """A kind of model, and how its authors pool."""

    make: Callable[[], transformers.PreTrainedModel]
    poolings: tuple[str, ...]
    changes: dict[str, object] = field(default_factory=dict)
    """keys of config.json that transformers does not write"""
    byte_level: bool = True
    """the tokenizer is byte-level BPE, where [PAD] has id 1; else WordPiece, where it has id 0"""


def _modernbert(**changes: object) -> transformers.PreTrainedModel:
    special = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    config = transformers.ModernBertConfig(**_SIZES, **special, local_attention=48, **changes)
    return transformers.ModernBertModel(config)


def _qwen3(**changes: object) -> transformers.PreTrainedModel:
    return transformers.Qwen3Model(transformers.Qwen3Config(**_GROUPED, head_dim=32, **changes))


def _gemma3(**changes: object) -> transformers.PreTrainedModel:
    return transformers.Gemma3TextModel(transformers.Gemma3TextConfig(**_GEMMA, **changes))


ROTARY = {
    "modernbert": RotaryFamily(_modernbert, ("mean", "cls"), byte_level=False),
    "modernbert-biases": RotaryFamily(
        lambda: _modernbert(attention_bias=True, mlp_bias=True, norm_bias=True), ("mean",), byte_level=False
    ),
    "nomic_bert": RotaryFamily(
        lambda: transformers.NomicBertModel(transformers.NomicBertConfig(**_SIZES)),
        ("mean",),
        byte_level=False,
    ),
    "gte": RotaryFamily(
        lambda: transformers.GteModel(transformers.GteConfig(**_SIZES, pad_token_id=1)), ("cls", "mean")
    ),
    "gte-without-types": RotaryFamily(
        lambda: transformers.GteModel(transformers.GteConfig(**_SIZES, pad_token_id=1, type_vocab_size=0)),
        ("cls",),
    ),
    "llama": RotaryFamily(
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**_GROUPED, attention_bias=True)),
        ("last", "mean"),
    ),
    "llama-both-ways": RotaryFamily(
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**_GROUPED, mlp_bias=True)),
        ("mean",),
        {"is_causal": False},
    ),
    "eurobert": RotaryFamily(
        lambda: transformers.EuroBertModel(transformers.EuroBertConfig(**_GROUPED, mask_token_id=4)),
        ("mean",),
    ),
    "mistral": RotaryFamily(
        lambda: transformers.MistralModel(transformers.MistralConfig(**_GROUPED, sliding_window=100)),
        ("last", "mean"),
    ),
    "mistral-both-ways": RotaryFamily(
        lambda: transformers.MistralModel(transformers.MistralConfig(**_GROUPED, sliding_window=30)),
        ("mean",),
        {"is_causal": False},
    ),
    "qwen2": RotaryFamily(
        lambda: transformers.Qwen2Model(
            transformers.Qwen2Config(
                **_GROUPED, use_sliding_window=True, sliding_window=70, max_window_layers=2
            )
        ),
        ("last",),
    ),
    "qwen2-both-ways": RotaryFamily(
        lambda: transformers.Qwen2Model(transformers.Qwen2Config(**_GROUPED)), ("last",), {"is_causal": False}
    ),
    "qwen3": RotaryFamily(_qwen3, ("last", "mean")),
    "qwen3-windows": RotaryFamily(
        lambda: _qwen3(use_sliding_window=True, sliding_window=90, max_window_layers=1), ("last",)
    ),
    "gemma3": RotaryFamily(_gemma3, ("last", "mean")),
    "embedding-gemma": RotaryFamily(lambda: _gemma3(use_bidirectional_attention=True), ("mean",)),
}


def save_rotary(name: str, folder: Path) -> Path:
    """Write the plain Hugging Face folder of a random model."""
    family = ROTARY[name]
    torch.manual_seed(0)
    model = family.make().eval()
    add_noise(model, 0.1)
    model.save_pretrained(folder)
    save_tokenizer(byte_level() if family.byte_level else word_piece(), folder)
    edit_json(folder / "tokenizer_config.json", model_max_length=LONGEST)
    edit_json(folder / "config.json", **family.changes)
    return folder


def save_sentence_transformer(name: str, folder: Path, pooling: str) -> Path:
    """Write a folder with modules: the model, pooling, for EmbeddingGemma two dense layers, normalization."""
    plain = save_rotary(name, folder / "plain")
    modules = [*peer_of(plain, pooling)]
    if name == "embedding-gemma":
        modules += [Dense(64, 128, activation_function=torch.nn.Identity(), bias=False)]
        modules += [Dense(128, 64, activation_function=torch.nn.Identity(), bias=False)]
    SentenceTransformer(modules=[*modules, Normalize()], device="cpu").save(str(folder / "published"))
    return folder / "published"


def peer_of(folder: Path, pooling: str) -> SentenceTransformer:
    """Load a plain folder in sentence-transformers, with a pooling and padding on the right."""
    mode = {"last": "lasttoken"}.get(pooling, pooling)
    transformer = Transformer(str(folder), max_seq_length=LONGEST)
    peer = SentenceTransformer(modules=[transformer, Pooling(64, mode)], device="cpu")
    peer.tokenizer.padding_side = "right"
    return peer


def texts_of(words: Sequence[int], seed: int = 0) -> list[str]:
    """Return a text for each number of words, which have 1.5 (WordPiece) or 2.6 tokens each."""
    rng = np.random.default_rng(seed)
    vocabulary = [*LONG.split()[:16], "ladder", "window", "snow", "mill"]
    return [" ".join(rng.choice(vocabulary, count)) for count in words]
