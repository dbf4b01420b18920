"""Token types of pairs reach the packed and the padded backbone."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from pipeline.models.trainable.encoder import load_trainable
from pipeline.text.tokens.pairs import PairFormat
from tests.models.folders import TEXTS, folder_at
from tests.models.pair_folders import pair_folder


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_vectors_of_pairs_are_those_of_transformers(tmp_path: Path, family: str):
    folder = folder_at(pair_folder(tmp_path / family, family), pooling="cls")
    tokenizer = folder.tokenizer()
    left, right = list(TEXTS), list(reversed(TEXTS))
    tokens = PairFormat.load(folder.path, tokenizer, folder.config).join(tokenizer(left), tokenizer(right))
    inputs = AutoTokenizer.from_pretrained(folder.path)(
        left, right, truncation=True, max_length=64, padding=True, return_tensors="pt"
    )
    assert inputs["token_type_ids"].any()
    with torch.no_grad():
        found = load_trainable(folder).eval()(tokens)
        expected = AutoModel.from_pretrained(folder.path).eval()(**inputs).last_hidden_state[:, 0]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
