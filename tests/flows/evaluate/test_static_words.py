"""Only whole words that a text can have are stored as static words."""

import numpy as np

from pipeline.flows.evaluate.geometry import storable_words


def test_pieces_incomplete_characters_and_white_space_are_left_out_and_spellings_are_unique():
    names = ["the", "##ing", "caf\ufffd", "", "two words", "line\nend", "the", "naïve"]
    is_whole = np.array([True, False, True, True, True, True, True, True])
    assert storable_words(names, is_whole) == {6: "the", 7: "naïve"}
    assert storable_words(["a", "b"], np.zeros(2, bool)) == {}
