"""Tables of token vectors are trained, truncated or not, and loaded by the library that wrote them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from pipeline.flows.train.rank import TrainRank
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.report.model_card import CARD
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.flows.conftest import sentences
from tests.flows.train.training import assert_resumes_to_the_same_bits, rank_of, train
from tests.models.folder.static_folders import random_table, save_model2vec, save_static
from tests.models.folders import word_piece

OBJECTIVE = "train.objective=supervised"


def write_pairs(file: Path) -> str:
    """Write pairs of a sentence and its words in reverse order; return the override that reads them."""
    texts = sentences(96)
    reverse = [" ".join(text.split()[::-1]) for text in texts]
    pq.write_table(pa.table({"anchor": texts, "positive": reverse}), file)
    return f"train.data={file}"


def rank_for(folder: Path, name: str, *overrides: str) -> TrainRank:
    """Return a training of a table of token vectors, with in-batch negatives."""
    if not (folder / "static").exists():
        save_static(folder / "static", word_piece(), normalize=True)
    pairs = write_pairs(folder / "pairs.parquet")
    return rank_of(folder, folder / "static", pairs, OBJECTIVE, f"train.name={name}", *overrides)


@pytest.mark.parametrize("overrides", [(), ("encoder.dim=7",), ("train.matryoshka=[4, 12]",)])
def test_a_table_is_trained_for_sentence_transformers(tmp_path: Path, overrides: tuple[str, ...]):
    whole, parts = (rank_for(tmp_path, name, *overrides) for name in ("run", "parts"))
    assert_resumes_to_the_same_bits(whole, parts, 6)
    folder = open_folder(EncoderSettings(path=whole.run.encoder))
    assert (folder.family, folder.dim) == ("static", 7 if "encoder.dim=7" in overrides else 12)
    texts = sentences(20, seed=3)
    vectors = load_encoder(EncoderSettings(path=whole.run.encoder), EncodeSettings()).encode(texts)
    peer = SentenceTransformer(whole.run.encoder, device="cpu")
    np.testing.assert_allclose(peer.encode(texts), vectors, atol=1e-6)
    card = (folder.path / CARD).read_text()
    assert "SentenceTransformer(" in card
    assert "| Longest text | no limit |" in card


def test_a_table_of_model2vec_stays_one(tmp_path: Path):
    tokenizer = word_piece()
    save_model2vec(tmp_path / "static", tokenizer, {"embeddings": random_table(tokenizer)}, normalize=True)
    rank = rank_for(tmp_path, "run")
    train(rank)
    folder = open_folder(EncoderSettings(path=rank.run.encoder))
    assert (folder.config["model_type"], folder.max_length) == ("model2vec", 512)
    assert "sentence-transformers does not compute its vectors" in (folder.path / CARD).read_text()
