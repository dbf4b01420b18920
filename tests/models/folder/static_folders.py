"""Folders of static embeddings as sentence-transformers saves them, and as model2vec does."""

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from tests.models.folders import byte_level, word_piece

WIDTH = 12
TOKENIZERS = {"WordPiece": word_piece, "byte-level BPE": byte_level}


def random_table(tokenizer: tokenizers.Tokenizer, rows: int | None = None) -> np.ndarray:
    """Draw a table with a row for each token, or with `rows` rows: (rows, WIDTH) float32."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows or tokenizer.get_vocab_size(), WIDTH)).astype(np.float32)


def save_static(
    folder: Path, tokenizer: tokenizers.Tokenizer, normalize: bool = False, **prompts: object
) -> SentenceTransformer:
    """Make and save a model of sentence-transformers with a StaticEmbedding module."""
    modules = [StaticEmbedding(tokenizer, random_table(tokenizer)), *([Normalize()] if normalize else [])]
    model = SentenceTransformer(modules=modules, device="cpu", **prompts)
    model.save_pretrained(str(folder))
    return model


def save_model2vec(
    folder: Path, tokenizer: tokenizers.Tokenizer, tensors: dict[str, np.ndarray], **config: object
) -> Path:
    """Write the files that model2vec's StaticModel.save_pretrained writes."""
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "config.json").write_text(json.dumps(config))
    kinds = {".": "StaticEmbedding", **({"1_Normalize": "Normalize"} if config.get("normalize") else {})}
    entries = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def model2vec_vectors(
    tokenizer: tokenizers.Tokenizer, tensors: dict[str, np.ndarray], texts: list[str], max_length: int = 512
) -> np.ndarray:
    """Compute the vectors that model2vec 0.10 returns, before normalization: (n, WIDTH) float64."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    backend.no_padding()
    backend.enable_truncation(max_length)
    characters = max_length * int(np.median([len(token) for token in backend.get_vocab()]))
    unknown = backend.token_to_id(backend.model.unk_token)
    mapping = tensors.get("mapping", np.arange(len(tensors["embeddings"])))
    weights = tensors.get("weights", np.ones(len(mapping)))
    vectors = np.zeros((len(texts), WIDTH))
    for row, text in enumerate(texts):
        ids = backend.encode(text[:characters], add_special_tokens=False).ids
        known = [token for token in ids if token != unknown]
        if known:
            table = tensors["embeddings"].astype(np.float64)
            vectors[row] = (table[mapping[known]] * weights[known][:, None]).mean(axis=0)
    return vectors
