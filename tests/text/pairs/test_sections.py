"""Anchor and positive are of one section, the negative of another section of the same document."""

from collections import Counter
from pathlib import Path

from tests.text.pairs.building import build


def test_each_text_of_a_section_with_several_texts_is_an_anchor(tmp_path: Path):
    rows = [
        {"document": "Lobster", "section": section, "text": text}
        for section, text in (
            ("Life", "It eats worms."),
            ("Life", "It lives for years."),
            ("Fishing", "Pots are used."),
        )
    ]
    found = build(tmp_path, "sections", rows)
    assert sorted(found, key=str) == [
        {"anchor": "It eats worms.", "positive": "It lives for years.", "negative": "Pots are used."},
        {"anchor": "It lives for years.", "positive": "It eats worms.", "negative": "Pots are used."},
    ]


def test_a_text_is_an_anchor_once_if_its_section_has_another_text_and_its_document_another_section(
    tmp_path: Path,
):
    sizes = {("a", "1"): 4, ("a", "2"): 1, ("a", "3"): 3, ("b", "1"): 5, ("c", "1"): 2, ("c", "2"): 2}
    rows = [
        {"document": document, "section": section, "text": f"{document} {section} {number}"}
        for (document, section), size in sizes.items()
        for number in range(size)
    ]
    found = build(tmp_path, "sections", rows)
    anchors = sorted(row["anchor"] for row in found)
    # Section 2 of a has one text, and b has one section.
    assert anchors == sorted(row["text"] for row in rows if row["text"][:3] not in ("a 2", "b 1"))
    for row in found:
        (document, section, _), positive, negative = (row[role].split() for role in row)
        assert positive[:2] == [document, section]
        assert row["positive"] != row["anchor"]
        assert negative[0] == document
        assert negative[1] != section
    negatives = Counter(row["negative"][:3] for row in found)
    assert negatives["a 1"] + negatives["a 3"] + negatives["a 2"] == 7
    assert negatives["c 1"] == negatives["c 2"] == 2


def test_negatives_are_drawn_from_all_other_sections(tmp_path: Path):
    rows = [
        {"document": "d", "section": section, "text": f"{section} {number}"}
        for section in "abcd"
        for number in range(500)
    ]
    drawn = Counter((row["anchor"][0], row["negative"][0]) for row in build(tmp_path, "sections", rows))
    assert len(drawn) == 12
    assert all(110 < count < 230 for count in drawn.values()), "500 / 3, with 5 standard deviations of 10.5"


def test_a_text_of_two_sections_is_never_its_own_negative(tmp_path: Path):
    rows = [
        {"document": "d", "section": section, "text": text}
        for section, texts in (("a", ["x", "y"]), ("b", ["x", "z", "w"]))
        for text in texts
    ]
    found = build(tmp_path, "sections", rows)
    assert all(len(set(row.values())) == 3 for row in found)
