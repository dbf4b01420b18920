"""Compare the vectors of every kind of encoder with those of sentence-transformers.

    python -m tests.benchmarks.tested_models

Models are random and tiny, and saved in the form in which their authors publish them. Takes about a minute.
"""

import importlib.metadata
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from pipeline.models.classic.word_table import BagModel
from pipeline.models.inference.padded import PaddedModel
from pipeline.models.spec.pooling import POOLINGS
from tests.benchmarks.machine import print_table
from tests.models.folder.static_folders import save_static
from tests.models.folders import (
    FAMILIES,
    SIZES,
    add_noise,
    encoder_at,
    save_folder,
    save_tokenizer,
    word_piece,
)
from tests.models.rotary_folders import ROTARY, save_rotary, save_sentence_transformer, texts_of

_TINY = SIZES | {"pad_token_id": 0}
_OTHERS: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "albert": lambda: transformers.AlbertModel(transformers.AlbertConfig(**_TINY, embedding_size=48)),
    "deberta-v2": lambda: transformers.DebertaV2Model(
        transformers.DebertaV2Config(**_TINY, relative_attention=True, pos_att_type=["p2c", "c2p"])
    ),
    "t5": lambda: transformers.T5EncoderModel(
        transformers.T5Config(
            vocab_size=300, d_model=48, d_kv=12, d_ff=96, num_layers=3, num_heads=4, is_encoder_decoder=False
        )
    ),
}
_SHORT = (1, 2, 3, 8, 17, 33)  # words of texts that 64 tokens hold, or nearly
_LONG = (*_SHORT, 64, 65, 130, 250, 560)


@dataclass(frozen=True)
class Kind:
    """Row of the table."""

    name: str
    examples: str
    models: tuple[str, ...]
    """random models of FAMILIES, ROTARY or _OTHERS"""
    poolings: tuple[str, ...]


_ALL = tuple(name for name, pooling in POOLINGS.items() if pooling.st_name)
KINDS = (
    Kind("BERT (`bert`)", "all-MiniLM, bge v1.5, e5, mxbai, LaBSE", ("bert",), _ALL),
    Kind(
        "RoBERTa, XLM-R (`roberta`, `xlm-roberta`, `camembert`)",
        "bge-m3, multilingual-e5, arctic-embed-l-v2",
        ("roberta", "xlm-roberta"),
        _ALL,
    ),
    Kind("DistilBERT (`distilbert`)", "distiluse, msmarco-distilbert", ("distilbert",), _ALL),
    Kind("MPNet (`mpnet`)", "all-mpnet-base-v2", ("mpnet",), _ALL),
    Kind(
        "ModernBERT (`modernbert`)",
        "gte-modernbert-base, modernbert-embed, granite r2",
        ("modernbert", "modernbert-biases"),
        ("mean", "cls"),
    ),
    Kind("nomic_bert (`nomic_bert`)", "nomic-embed-text v1, v1.5", ("nomic_bert",), ("mean",)),
    Kind(
        "gte (`gte`)",
        "gte-multilingual-base, gte-large-en-v1.5 as transformers stores them",
        ("gte", "gte-without-types"),
        ("cls", "mean"),
    ),
    Kind("Llama (`llama`)", "", ("llama", "llama-both-ways"), ("last", "mean")),
    Kind("EuroBERT (`eurobert`)", "EuroBERT", ("eurobert",), ("mean",)),
    Kind("Mistral (`mistral`)", "e5-mistral-7b-instruct", ("mistral", "mistral-both-ways"), ("last", "mean")),
    Kind("Qwen2 (`qwen2`)", "gte-Qwen2 without its code", ("qwen2", "qwen2-both-ways"), ("last",)),
    Kind("Qwen3 (`qwen3`)", "Qwen3-Embedding", ("qwen3", "qwen3-windows"), ("last", "mean")),
    Kind("Gemma 3 (`gemma3_text`)", "", ("gemma3",), ("last", "mean")),
    Kind("Gemma 3, two dense layers", "EmbeddingGemma", ("embedding-gemma",), ("mean",)),
    Kind("ELECTRA (`electra`)", "", ("electra",), ("mean", "cls")),
    Kind("ALBERT (`albert`)", "paraphrase-albert-small-v2", ("albert",), ("mean", "cls")),
    Kind("DeBERTa v2, v3 (`deberta-v2`)", "", ("deberta-v2",), ("mean", "cls")),
    Kind("encoder of T5 (`t5`)", "sentence-t5, gtr-t5", ("t5",), ("mean",)),
    Kind("table of token vectors", "static-retrieval-mrl-en-v1, potion", ("static",), ("mean",)),
)


def save(name: str, folder: Path, pooling: str) -> tuple[Path, SentenceTransformer]:
    """Write a random model, and load it in sentence-transformers with a pooling."""
    if name == "static":
        return folder, save_static(folder, word_piece())
    if name == "embedding-gemma":
        published = save_sentence_transformer(name, folder, pooling)
        return published, SentenceTransformer(str(published), device="cpu")
    if name in ROTARY:
        save_rotary(name, folder)
    elif name in FAMILIES:
        save_folder(folder, name)
    else:
        torch.manual_seed(0)
        model = _OTHERS[name]().eval()
        add_noise(model, 0.1)
        model.save_pretrained(folder)
        save_tokenizer(word_piece(), folder)
    transformer = Transformer(str(folder), max_seq_length=8_192 if name in ROTARY else 64)
    mode = POOLINGS[pooling].st_name
    width = transformer.get_embedding_dimension()
    return folder, SentenceTransformer(modules=[transformer, Pooling(width, mode)], device="cpu")


def differences(kind: Kind, top: Path) -> Iterator[tuple[str, int, float]]:
    """Yield for each model and pooling: engine, tokens of the longest text, and largest difference."""
    for model in kind.models:
        for pooling in kind.poolings:
            folder, peer = save(model, top / model / pooling, pooling)
            encoder = encoder_at(folder, pooling=pooling)
            texts = texts_of(_LONG if model in ROTARY else _SHORT)
            difference = np.abs(encoder.encode(texts) - peer.encode(texts, batch_size=4)).max()
            engines = {PaddedModel: "padded", BagModel: "table"}
            engine = engines.get(type(encoder._model), "packed")
            yield engine, int(encoder.count_tokens(texts).lengths.max()), float(difference)


def main() -> None:
    rows = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
            engines, lengths, found = zip(*differences(kind, Path(top)), strict=True)
        poolings = "every one of that library" if kind.poolings == _ALL else ", ".join(kind.poolings)
        (engine,) = set(engines)
        rows.append((kind.name, kind.examples, poolings, engine, f"{max(lengths):,}", f"{max(found):.1e}"))
    print_table(
        "float32, texts of up to the given number of tokens, against sentence-transformers "
        + importlib.metadata.version("sentence-transformers"),
        rows,
        ("family (`model_type`)", "published models", "poolings", "computed", "tokens", "largest difference"),
    )


if __name__ == "__main__":
    main()
