"""Compare the vectors and the speed of every packed family with sentence-transformers' padded pass.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.families

Models are random and small: 6 layers of width 384. The packaged all-MiniLM-L6-v2, with its own tokenizer, has
this size too. Both libraries are measured in turn, in CPU time of all threads, with the batch size at which
sentence-transformers is fastest. The ratio depends on the processor: linear layers of Manta fill its vector
units, which torch.mm does on Intel only. The title has the speeds of both, before and after. Takes about nine
minutes on an idle machine.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from pipeline.models.folder.locate import locate
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.benchmarks.encode import captions, ceilings, measure, mixed, seconds
from tests.benchmarks.machine import machine, print_table, spread
from tests.models.folders import add_noise

BATCH_SIZES = (8, 32)
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
_WORDS = 8_000  # tokens of the vocabulary
_COMMON = {
    "vocab_size": _WORDS,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "intermediate_size": 1_024,
    "max_position_embeddings": 2_048,
    "pad_token_id": 0,
}
_PLAIN = _COMMON | {"intermediate_size": 1_536}  # as many weights as with gates
_GROUPED = _COMMON | {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 64}
_ENDS = {"bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}

Make = Callable[[], transformers.PreTrainedModel]


def _model(model_type: str, sizes: dict[str, object], **changes: object) -> transformers.PreTrainedModel:
    config = transformers.AutoConfig.for_model(model_type, **sizes, **changes)
    return transformers.AutoModel.from_config(config)


MINILM = "all-MiniLM-L6-v2"
FAMILIES: dict[str, tuple[Make | None, str]] = {
    MINILM: (None, "mean"),
    "BERT": (partial(_model, "bert", _PLAIN), "mean"),
    "RoBERTa, XLM-R": (partial(_model, "xlm-roberta", _PLAIN), "mean"),
    "DistilBERT": (
        partial(
            _model,
            "distilbert",
            {"vocab_size": _WORDS, "max_position_embeddings": 2_048, "pad_token_id": 0},
            dim=384,
            n_layers=6,
            n_heads=6,
            hidden_dim=1_536,
        ),
        "mean",
    ),
    "MPNet": (partial(_model, "mpnet", _PLAIN), "mean"),
    "ModernBERT": (partial(_model, "modernbert", _COMMON, **_ENDS), "cls"),
    "nomic_bert": (partial(_model, "nomic_bert", _COMMON), "mean"),
    "gte": (partial(_model, "gte", _COMMON), "cls"),
    "Llama": (partial(_model, "llama", _GROUPED), "last"),
    "EuroBERT": (partial(_model, "eurobert", _GROUPED, mask_token_id=3), "mean"),
    "Mistral": (partial(_model, "mistral", _GROUPED, sliding_window=256), "last"),
    "Qwen2": (partial(_model, "qwen2", _COMMON, num_key_value_heads=2), "last"),
    "Qwen3": (partial(_model, "qwen3", _GROUPED), "last"),
    "Gemma 3": (partial(_model, "gemma3_text", _GROUPED, sliding_window=128), "last"),
    "EmbeddingGemma": (
        partial(_model, "gemma3_text", _GROUPED, sliding_window=128, use_bidirectional_attention=True),
        "mean",
    ),
}


def train_tokenizer(texts: list[str]) -> tokenizers.Tokenizer:
    """Train a byte-level BPE tokenizer that puts a text between [CLS] and [SEP]."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_WORDS, special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


def write_folder(make: Make, tokenizer: tokenizers.Tokenizer, folder: Path) -> Path:
    """Write a random model with its tokenizer."""
    torch.manual_seed(0)
    model = make().eval()
    add_noise(model, 0.02)
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    ).save_pretrained(folder)
    return folder


def peer_of(folder: Path, pooling: str, device: str = "cpu", **options: object) -> SentenceTransformer:
    """Load the folder in sentence-transformers. options: of transformers' `from_pretrained`."""
    mode = {"last": "lasttoken"}.get(pooling, pooling)
    transformer = Transformer(str(folder), max_seq_length=512, model_kwargs=options)
    # for Qwen2, transformers replaces the pre-tokenizer of tokenizer.json by that of the published models
    transformer.processor = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    width = transformer.get_embedding_dimension()
    return SentenceTransformer(modules=[transformer, Pooling(width, mode)], device=device)


class Compared(NamedTuple):
    """Speed and accuracy of an encoder and of the same model in sentence-transformers."""

    ratios: list[float]
    """of CPU time, sentence-transformers' divided by Manta's, of each round"""
    rate: float
    """texts that Manta encodes per second of CPU time, in the median of the rounds"""
    difference: float
    """largest difference between two values"""


def compare(encoder: Encoder, peer: SentenceTransformer, texts: list[str], rounds: int) -> Compared:
    """Measure both in turn, the peer with its best batch size."""
    times = {
        size: seconds(lambda size=size: peer.encode(texts, batch_size=size))  # type: ignore[misc]
        for size in BATCH_SIZES
    }
    best = min(times, key=lambda size: times[size])
    difference = float(np.abs(peer.encode(texts, batch_size=best) - encoder.encode(texts)).max())
    calls = {
        "peer": partial(peer.encode, texts, batch_size=best),
        "Manta": partial(encoder.encode, texts),
    }
    taken = measure(calls, rounds)
    ours = taken["Manta"].cpu
    return Compared((taken["peer"].cpu / ours).tolist(), len(texts) / float(np.median(ours)), difference)


def speeds() -> str:
    """Return GFLOP/s of Manta's linear layers and of torch.mm, which sentence-transformers uses."""
    torch_gflops, linear_gflops = ceilings()
    return f"{linear_gflops:.0f} and {torch_gflops:.0f}"


def main(data: Path, names: list[str], rounds: int, threads: int) -> None:
    """Measure the families and print the table."""
    torch.set_num_threads(threads)
    chooser = load_encoder(EncoderSettings(), EncodeSettings())
    corpora = {
        "captions": captions(data, chooser).texts[:400],
        "mixed lengths": mixed(data, chooser).texts[:60],
    }
    tokenizer = train_tokenizer([text for texts in corpora.values() for text in texts])
    rows, before = [], speeds()
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        for number, name in enumerate(names):
            make, pooling = FAMILIES[name]
            folder = write_folder(make, tokenizer, Path(top) / str(number)) if make else locate(MINILM)
            settings = EncoderSettings(path=str(folder), pooling=pooling)
            encoder = load_encoder(settings, EncodeSettings(threads=threads))
            peer = peer_of(folder, pooling) if make else SentenceTransformer(str(folder), device="cpu")
            results = [compare(encoder, peer, texts, rounds) for texts in corpora.values()]
            cells = [cell for each in results for cell in (f"{each.rate:,.0f}", spread(each.ratios))]
            worst = max(each.difference for each in results)
            rows.append([name, pooling, *cells, f"{worst:.1e}"])
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    counts = ", ".join(f"{len(texts)} texts of {name}" for name, texts in corpora.items())
    print_table(
        f"{counts}; {threads} threads, {rounds} rounds in turn; {machine()}; GFLOP/s of linear layers and of "
        f"torch.mm: {before} before, {speeds()} after",
        rows,
        ("family", "pooling", "captions/s", "ratio", "mixed texts/s", "ratio", "largest difference"),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    root = os.environ.get("MANTA_EVAL_DATA") or sys.exit(
        "set MANTA_EVAL_DATA to the folder of evaluation data"
    )
    main(Path(root), given.families, given.rounds, given.threads)
