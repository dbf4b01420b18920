"""Every setting of a corpus decides how rows are read, unless it is named as one that does not."""

from typing import Any

import pytest

from pipeline.settings import ChunkSettings, CorpusSettings
from pipeline.text.ingest.chunking import ChunkedCorpus, Cutter
from pipeline.text.ingest.corpus_record import NOT_READING, reading_digest

OTHER: dict[str, Any] = {
    "uri": "other",
    "snapshot": 3,
    "format": "jsonl",
    "id": "key",
    "text": "body",
    "keep": ("lang",),
    "where": "lang = 'de'",
    "exclude": "ids.txt",
    "harvest": "docstrings",
    "max_rows": 7,
    "bad_files": "skip",
    "max_quarantined": 0.1,
    "fingerprint": "full",
}
CHUNKED = ChunkedCorpus(chunk=ChunkSettings(by="tokens"), cutter=Cutter(space_id="s"))


class Later(CorpusSettings):
    """Settings of a later version."""

    strip_html: bool = False


class LaterChunks(ChunkSettings):
    """Settings of a later version."""

    keep_headings: bool = False


def test_a_setting_counts_unless_it_is_named():
    default = reading_digest(CorpusSettings())
    assert OTHER.keys() == CorpusSettings.model_fields.keys() - {"chunk"}, "add the new setting here"
    for name, value in OTHER.items():
        changed = reading_digest(CorpusSettings(**{name: value})) != default
        assert changed == (name not in NOT_READING), name


def test_a_later_setting_keeps_digests_at_its_default_and_counts_otherwise():
    assert reading_digest(Later()) == reading_digest(CorpusSettings())
    assert reading_digest(Later(strip_html=True)) != reading_digest(CorpusSettings())
    later = CHUNKED.model_copy(update={"chunk": LaterChunks(by="tokens")})
    assert reading_digest(later) == reading_digest(CHUNKED)
    changed = CHUNKED.model_copy(update={"chunk": LaterChunks(by="tokens", keep_headings=True)})
    assert reading_digest(changed) != reading_digest(CHUNKED)


@pytest.mark.parametrize(
    ("corpus", "digest"),
    [
        (CorpusSettings(), "ee6615fecbc136d7731d214ce64a24d57e1c2977c3cd61a9ecbe2e59b8b61644"),
        (
            CorpusSettings(id="x", keep=("a", "b"), max_rows=3, bad_files="skip", uri="u", format="jsonl"),
            "25d23346609f20354ff2abfe6a2f8dd679fef5f5d1611b861858576885036351",
        ),
        (CHUNKED, "3f823813cc4cbe2d41ba17eb98aeb0a0e00887909c8e942f28529b56a0a50d5d"),
        (
            ChunkedCorpus(
                keep=("a",),
                chunk=ChunkSettings(by="headings", max_tokens=100, overlap=10),
                cutter=Cutter(space_id="s2"),
            ),
            "12d62e292d7918641ea9e2d208f8c5ba26ee58bdb63a2580eca2569161de19ef",
        ),
    ],
)
def test_digests_of_the_first_version_stay(corpus: CorpusSettings, digest: str):
    assert reading_digest(corpus) == digest
