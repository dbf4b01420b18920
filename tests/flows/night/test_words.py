"""A night with word vectors: its release needs neither the file of vectors nor that of the counts."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import DataError, ModelError
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.night.planning.preflight import _Checks
from pipeline.flows.workers.ray_workers import RayWorkers
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncodeSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.rows.schema import vector_matrix
from pipeline.text.tokens.stop_words import STOP_WORDS
from tests.conftest import CommandResult
from tests.flows.conftest import WORDS, job_arguments, sentences, write_corpus
from tests.models.folder.wordfiles import write_counts, write_words

Manta = Callable[..., CommandResult]


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write a corpus, word vectors and word counts, and return the arguments of a night over them.

    The corpus has 300 texts of known words, and one without a known word. The file of vectors has one word
    twice.
    """
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    write_corpus(tmp_path / "corpus", count=300)
    pq.write_table(
        pa.table({"id": ["strange"], "text": ["qqzzq xxyyx"], "lang": ["??"]}),
        tmp_path / "corpus" / "part-9.parquet",
    )
    vectors = np.random.default_rng(0).normal(size=(len(WORDS) + 1, 24)).astype(np.float32)
    write_words(tmp_path / "words.txt.gz", (*WORDS, "a"), vectors, "word2vec")
    write_counts(
        tmp_path / "counts.parquet", Counter(word for text in sentences(300) for word in text.split())
    )
    words = [
        f"encoder.path={tmp_path / 'words.txt.gz'}",
        f"encoder.frequencies={tmp_path / 'counts.parquet'}",
        "encoder.sif=0.001",
    ]
    return [*job_arguments(tmp_path, Path("replaced")), "whiten.mode=off", "gates.recall_at_10=", *words]


@pytest.mark.usefixtures("cluster")
def test_a_corpus_without_any_known_word_ends_the_night_with_that_reason(
    arguments: list[str], manta: Manta, tmp_path: Path
):
    for file in (tmp_path / "corpus").glob("part-[0-2].parquet"):
        file.unlink()
    ended = manta("nightly", *arguments)
    assert ended.code == 4
    assert "found none for the whole corpus; use an encoder of the texts' language" in ended.err
    assert "weights" not in ended.err


@pytest.mark.usefixtures("cluster")
def test_a_release_of_word_vectors_is_searched_with_its_own_copy_of_them(
    arguments: list[str], manta: Manta, tmp_path: Path
):
    first = manta("nightly", "--json", *arguments)
    assert first.code == 0, first.err[-3000:]
    assert "1 lines repeat a word; its first vector is used" in first.err
    assert '"status": "unchanged"' in manta("nightly", "--json", *arguments).out
    raw = load_encoder(
        load_settings(Job, None, tuple(arguments)).encoder, load_settings(Job, None, tuple(arguments)).encode
    )
    expected = raw.encode(sentences(300))
    for file in (tmp_path / "words.txt.gz", tmp_path / "counts.parquet"):
        file.unlink()
    shutil.rmtree(tmp_path / "cache")
    release = open_release(tmp_path / "releases")
    assert (len(release), release.manifest.counts["quarantined"], release.space_id) == (300, 1, raw.space_id)
    np.testing.assert_array_equal(release.encode(sentences(300)[:40]), expected[:40])
    cosines = expected @ expected[7] / np.linalg.norm(expected, axis=1) / np.linalg.norm(expected[7])
    found = release.search(sentences(300)[7], k=5)
    np.testing.assert_allclose(found["score"].to_numpy(), np.sort(cosines)[::-1][:5], atol=1e-5)
    assert found["text"][0].as_py() == sentences(300)[7]
    stored = pa.concat_tables(
        [pq.read_table(open_store(tmp_path / "releases").local(unit.path)) for unit in release.manifest.units]
    )
    np.testing.assert_array_equal(vector_matrix(stored["vector"])[:40], expected[:40])
    with pytest.raises(
        DataError, match="search: query: expected a word that the release's encoder knows, found 'xxyyx'"
    ):
        release.search("xxyyx")


@pytest.mark.usefixtures("cluster")
def test_canary_texts_of_unknown_words_do_not_stop_the_next_night(
    arguments: list[str], manta: Manta, tmp_path: Path
):
    assert manta("nightly", *arguments).code == 0
    pq.write_table(
        pa.table({"id": ["late"], "text": [sentences(1)[0]], "lang": ["en"]}),
        tmp_path / "corpus" / "part-late.parquet",
    )
    second = manta("nightly", "--json", *arguments)
    assert second.code == 0, second.err[-3000:]
    assert json.loads(second.out)["gates"]["canary_cosine"]["value"] == pytest.approx(1)


def test_preflight_names_word_vectors(arguments: list[str], tmp_path: Path):
    job = load_settings(Job, None, tuple(arguments))
    check = _Checks(job, Stages(), verbose=False, connections=ExitStack()).encoder()
    assert check.found.startswith(
        f"{tmp_path / 'words.txt.gz'}: {len(WORDS)} words: 24 dimensions, 1024 tokens, space "
    )
    (tmp_path / "counts.parquet").unlink()
    with pytest.raises(
        ModelError,
        match=r"encoder\.frequencies: expected a Parquet file .* found no such file .*counts\.parquet",
    ):
        _Checks(job, Stages(), verbose=False, connections=ExitStack()).encoder()


def test_workers_load_word_vectors_from_the_copy_in_a_remote_root(
    arguments: list[str], tmp_path: Path, s3: str
):
    encoder = load_settings(Job, None, tuple(arguments)).encoder
    expected = load_encoder(encoder, EncodeSettings())
    for_workers = encoder_for_workers(encoder, open_store(f"{s3}/{tmp_path.name}"), RayWorkers(()))
    for file in (tmp_path / "words.txt.gz", tmp_path / "counts.parquet"):
        file.unlink()
    shutil.rmtree(tmp_path / "cache")
    loaded = load_encoder(for_workers, EncodeSettings())
    assert (loaded.space_id, loaded.folder.files) == (expected.space_id, expected.folder.files)
    np.testing.assert_array_equal(loaded.encode(sentences(50)), expected.encode(sentences(50)))


@pytest.mark.usefixtures("cluster")
def test_word_vectors_without_stop_words_accept_english_and_refuse_chinese(
    arguments: list[str], manta: Manta, tmp_path: Path
):
    words = tuple(word for word in WORDS if word not in STOP_WORDS)
    vectors = np.random.default_rng(0).normal(size=(len(words), 24)).astype(np.float32)
    write_words(tmp_path / "words.txt.gz", words, vectors, "word2vec")
    punctuated = [f"{text.replace(' ', ', ')}, and so it isn't." for text in sentences(100)]
    pq.write_table(
        pa.table({"id": [f"p{row}" for row in range(100)], "text": punctuated, "lang": ["en"] * 100}),
        tmp_path / "corpus" / "punctuated.parquet",
    )
    english = manta("nightly", "--json", *arguments)
    assert english.code == 0, english.err[-3000:]
    assert json.loads(english.out)["gates"]["unknown_tokens"]["value"] < 0.05
    assert json.loads(english.out)["warnings"] == []
    segmented = ["\u6211\u4eec \u5728 \u5b66\u6821 \u5b66\u4e60 dog"] * 400
    pq.write_table(
        pa.table({"id": [f"c{row}" for row in range(400)], "text": segmented, "lang": ["zh"] * 400}),
        tmp_path / "corpus" / "chinese.parquet",
    )
    refused = manta("nightly", *arguments, "gates.max_repeated_texts=")
    assert refused.code == 5
    assert "unknown to the encoder's tokenizer" in refused.err
    assert "Chinese texts" in refused.err


@pytest.mark.usefixtures("cluster")
def test_rows_without_a_vector_are_warned_about_and_refused_above_the_limit(
    arguments: list[str], manta: Manta, tmp_path: Path
):
    settings = [*arguments, "gates.unknown_tokens=", "corpus.max_quarantined=0.3"]
    strange = pa.table({"id": [f"s{row}" for row in range(99)], "text": ["qqzzq"] * 99, "lang": ["??"] * 99})
    pq.write_table(strange, tmp_path / "corpus" / "strange.parquet")
    published = manta("nightly", *settings)
    assert published.code == 0, published.err[-3000:]
    assert (
        "published release 1: 300 rows (400 new), 100 rows quarantined (100 unusable_vector)" in published.out
    )
    warning = "100 of 400 rows (25.0%) have no vector and will not be found, because of the encoder"
    assert f"warning: {warning}" in published.err
    assert warning in (tmp_path / "releases/releases/00000001/report.html").read_text()
    stranger = pa.table({"id": [f"t{row}" for row in range(99)], "text": ["xyz"] * 99, "lang": ["??"] * 99})
    pq.write_table(stranger, tmp_path / "corpus" / "stranger.parquet")
    refused = manta("nightly", *settings)
    assert refused.code == 5, refused.err[-3000:]
    assert "0.3988 of the rows read, 199 of 499, are quarantined, 0.3 at most" in refused.err


@pytest.mark.usefixtures("cluster")
def test_a_deleted_text_without_a_vector_is_on_no_page(arguments: list[str], manta: Manta, tmp_path: Path):
    def page(number: int) -> str:
        return (tmp_path / f"releases/releases/{number:08d}/report.html").read_text()

    strange = tmp_path / "corpus" / "part-0a.parquet"  # its unit holds other rows too, and lives on
    (tmp_path / "corpus" / "part-9.parquet").rename(strange)
    assert manta("nightly", *arguments).code == 0
    assert "qqzzq xxyyx" in page(1)
    strange.unlink()
    second = manta("nightly", "--json", *arguments)
    assert json.loads(second.out)["counts"]["quarantined"] == 0
    more = pa.table({"id": ["late"], "text": [sentences(1)[0]], "lang": ["en"]})
    pq.write_table(more, tmp_path / "corpus" / "part-late.parquet")
    assert manta("nightly", *arguments).code == 0
    assert "qqzzq xxyyx" not in page(3), "page 2 shows it among the deleted rows"
    listed = manta("releases", "quarantine", str(tmp_path / "releases"), "--json").out
    assert "qqzzq" not in listed


@pytest.mark.usefixtures("cluster")
def test_a_text_without_a_vector_is_listed_with_the_present_name_of_its_file(
    arguments: list[str], manta: Manta, tmp_path: Path
):
    strange = tmp_path / "corpus" / "part-0a.parquet"  # its unit holds other rows too, and lives on
    (tmp_path / "corpus" / "part-9.parquet").rename(strange)
    assert manta("nightly", *arguments).code == 0
    strange.rename(tmp_path / "corpus" / "part-0b.parquet")
    more = pa.table({"id": ["late"], "text": [sentences(1)[0]], "lang": ["en"]})
    pq.write_table(more, tmp_path / "corpus" / "part-late.parquet")
    assert manta("nightly", *arguments).code == 0
    for number, name in ((1, "part-0a.parquet"), (2, "part-0b.parquet")):
        listed = manta("releases", "quarantine", str(tmp_path / "releases"), str(number), "--json")
        assert [row["file"] for row in json.loads(listed.out)["rows"]] == [name]
        page = (tmp_path / f"releases/releases/{number:08d}/report.html").read_text()
        assert name in page
