"""Texts for which the encoder raises are named with the reason; others have the vectors of `encode`."""

import numpy as np
import pytest

from pipeline.errors import ModelError
from tests.index.published import choosy_encoder, open_encoder, texts


@pytest.mark.parametrize("bad", [(), (0,), (6, 7, 20), (32,), tuple(range(33))], ids=len)
def test_texts_for_which_the_encoder_raises_are_named_and_the_others_encoded(folders, bad):
    corpus = [f"\u2603 {text}" if number in bad else text for number, text in enumerate(texts(33))]
    vectors, reasons = choosy_encoder(folders["bert"]).encode_each(corpus)
    assert tuple(reasons) == bad
    assert set(reasons.values()) <= {"IndexError: index out of range in self"}
    assert np.flatnonzero(np.isnan(vectors).any(axis=1)).tolist() == list(bad)
    good = [number for number in range(33) if number not in bad]
    np.testing.assert_array_equal(vectors[good], open_encoder(folders["bert"]).encode(texts(33))[good])


def test_an_encoder_that_raises_for_a_plain_sentence_is_at_fault_and_not_the_text(folders):
    encoder = choosy_encoder(folders["bert"])
    encoder.is_broken = True
    with pytest.raises(ModelError, match="expected an encoder that encodes a plain sentence"):
        encoder.encode_each(["two dogs"])
