"""A row is a sentence with the sentences before and after it, whatever the order of the rows."""

from pathlib import Path

from tests.text.pairs.building import build


def test_sentences_get_the_neighbours_of_their_own_document_in_any_order_of_the_rows(tmp_path: Path):
    rows = [
        {"document": document, "position": position, "text": f"{document}{position}"}
        for document, position in [("b", 2), ("a", 3), ("a", 1), ("b", 1), ("a", 0), ("b", 3), ("a", 2)]
    ]
    found = build(tmp_path, "neighbours", rows)
    assert sorted(found, key=str) == [
        {"previous": "a0", "text": "a1", "next": "a2"},
        {"previous": "a1", "text": "a2", "next": "a3"},
        {"previous": "b1", "text": "b2", "next": "b3"},
    ]


def test_gaps_and_blank_sentences_end_a_run(tmp_path: Path):
    rows = [
        {"document": 1, "position": position, "text": f"{position}"} for position in (0, 1, 2, 4, 5, 6, 7)
    ]
    rows += [{"document": None, "position": position, "text": "none"} for position in range(3)]
    rows[5]["text"] = "  "
    assert build(tmp_path, "neighbours", rows) == [{"previous": "0", "text": "1", "next": "2"}]


def test_neighbours_of_equal_text_make_a_row(tmp_path: Path):
    rows = [{"document": 1, "position": position, "text": "Yes."} for position in range(3)]
    assert build(tmp_path, "neighbours", rows) == [{"previous": "Yes.", "text": "Yes.", "next": "Yes."}]
