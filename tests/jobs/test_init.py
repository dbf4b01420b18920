"""`manta init` looks at a corpus and writes settings that run as they are."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.flows.workers.interface import Workers
from pipeline.settings import Job
from tests.conftest import CommandResult
from tests.flows.conftest import sentences

Manta = Callable[..., CommandResult]
GERMAN = [
    "Der Hund läuft schnell durch den großen Garten.",
    "Die Katze schläft heute auf dem warmen Dach.",
    "Wir fahren morgen mit dem Zug nach Hause.",
]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(table: dict[str, list[Any]], file: str = "corpus.parquet") -> str:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), file)
    return file


def test_the_written_settings_publish_a_release(encoder: Path, cluster: Workers, manta: Manta):
    texts = sentences(40)
    uri = written(
        {
            "number": list(range(40)),
            "title": [text[:9] for text in texts],
            "body": texts,
            "score": [0.5] * 40,
        },
        "docs/part-0.parquet",
    )
    assert manta("init", str(Path(uri).parent)).code == 0
    job = load_settings(Job, "night.yaml")
    assert (job.corpus.id, job.corpus.text, job.corpus.keep, job.release.root) == (
        "number",
        "body",
        ("title",),
        str(Path("out/docs").absolute()),
    )
    night = manta("nightly", "--config", "night.yaml", f"encoder.path={encoder}", "--json")
    assert (night.code, json.loads(night.out)["rows"]) == (0, 40), night.err
    again = manta("nightly", "--config", "night.yaml", f"encoder.path={encoder}")
    assert (again.out + again.err).count("nothing changed") == 1
    found = json.loads(manta("search", "out/docs", texts[7], "-k", "1", "--json").out)
    assert (found["id"], found["title"]) == (7, texts[7][:9])


@pytest.mark.slow
def test_every_command_that_reads_the_corpus_takes_templates_and_filters(
    encoder: Path, cluster: Workers, manta: Manta
):
    texts = sentences(60)
    titles = [None if number % 3 == 0 else f"title {number}" for number in range(60)]
    uri = written({"id": list(range(60)), "title": titles, "body": texts}, "docs/part-0.parquet")
    assert manta("init", uri, "--text", "{title}: {body}").code == 0
    assert load_settings(Job, "night.yaml").corpus.text == "{title}: {body}"
    Path("excluded.txt").write_text("3\n")
    settings = [f"encoder.path={encoder}", "corpus.where=id < 40", "corpus.exclude=excluded.txt"]
    settings = ["--config", "night.yaml", *settings, "gates.recall_at_10="]
    checked = manta("preflight", *settings)
    assert checked.code == 0, checked.err
    assert "0 would be quarantined and 21 filtered" in checked.out
    plan = manta("plan", *settings, "--json")
    assert json.loads(plan.out)["rows"] == 39, plan.err
    night = json.loads(manta("nightly", *settings, "--json").out)
    assert (night["rows"], night["counts"]["filtered"]) == (39, 21)
    found = json.loads(
        manta("search", "out/part-0", f"title 7: {texts[7]}", "-k", "1", "--json", "--texts").out
    )
    assert (found["id"], found["text"]) == (7, f"title 7: {texts[7]}")
    assert manta("encode", *settings).code == 0
    assert manta("augment", "--config", "night.yaml", "augment.variants.crop=crop", *settings[2:5]).code == 0
    for command in (["nightly"], ["preflight"], ["plan"]):
        ended = manta(*command, *settings, "corpus.text={titel} {body}")
        assert ended.code == 2
        assert "'titel', but the rows have the columns" in ended.err + ended.out


def test_a_template_with_an_unknown_column_or_a_wrong_brace_is_refused(manta: Manta):
    uri = written({"id": [1, 2], "text": ["a", "b"]})
    for template, words in (("{title}: {text}", "a column 'title' for the text"), ("{text", "single {")):
        ended = manta("init", uri, "--text", template)
        assert (ended.code, Path("night.yaml").exists()) == (2, False)
        assert words in ended.err


def test_every_line_has_the_comment_of_its_setting(manta: Manta):
    manta("init", written({"id": ["a", "b"], "text": ["one text", "another"]}))
    lines = Path("night.yaml").read_text().splitlines()
    reference = manta("nightly", "--print-config").out.splitlines()
    settings = [number for number, line in enumerate(lines) if line and not line.lstrip().startswith("#")]
    assert len(settings) > 10
    for number in settings:
        assert lines[number - 1].lstrip().startswith("#")
        assert lines[number - 1] in reference, "the comment is that of --print-config"


def test_a_file_that_exists_is_left_alone(manta: Manta):
    uri = written({"id": ["a"], "text": ["one text"]})
    Path("night.yaml").write_text("mine")
    ended = manta("init", uri)
    assert (ended.code, Path("night.yaml").read_text()) == (2, "mine")
    assert "name another with --output" in ended.err
    assert manta("init", uri, "--output", "other.yaml").code == 0


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"text": ["a b", "c d"], "id": [1, 2]}, ("id", "text", ())),
        (
            {"url": ["x/1", "x/2"], "title": ["A", "B"], "content": ["some words", "more words"]},
            ("url", "content", ("title",)),
        ),
        (
            {
                "title": ["one", "two"],
                "doc_id": ["p", "q"],
                "body": ["words and words", "again words"],
                "vector": [[0.5], [1.0]],
            },
            ("doc_id", "body", ("title",)),
        ),
        (
            {"slug": ["p", "q"], "lang": ["en", "en"], "summary": ["words and words", "again words"]},
            ("slug", "summary", ("lang",)),
        ),
        (
            {"uuid": ["0b5c-0001-77aa", "0b5c-0002-77aa"], "title": ["One", "Two"]},
            ("uuid", "title", ()),
        ),
        ({"id": ["same", "same"], "key": [1, 2], "text": ["a", "b"]}, ("key", "text", ())),
        (
            {"id": [1, 2, 3], "text": ["a", "b", "c"], "body": [None, None, "a d"]},
            ("id", "text", ("body",)),
        ),
    ],
)
def test_columns_are_guessed_from_their_values(
    table: dict[str, list[Any]], expected: tuple[Any, ...], manta: Manta
):
    manta("init", written(table))
    corpus = load_settings(Job, "night.yaml").corpus
    assert (corpus.id, corpus.text, corpus.keep) == expected


def test_a_few_rows_without_an_id_of_their_own_are_counted(manta: Manta):
    ids: list[Any] = [f"row-{number}" for number in range(200)]
    texts = [f"a text with the number {number % 7}" for number in range(202)]
    ended = manta("init", written({"id": [*ids, "row-7", None], "text": texts}))
    assert ended.code == 0, ended.err
    assert load_settings(Job, "night.yaml").corpus.id == "id"
    note = (
        "2 of the 202 rows that were read have no usable id in the column id, or the id of an earlier row; a "
        "night quarantines these rows"
    )
    assert note in ended.out.splitlines()
    assert f"# {note}.\n" in Path("night.yaml").read_text()
    many = written({"id": [*ids[:8], None, None], "text": texts[:10]}, "many.parquet")
    refused = manta("init", many, "--output", "many.yaml")
    assert refused.code == 3, "two rows of ten are too many"


def test_a_language_unknown_to_the_default_encoder_is_named(manta: Manta):
    pytest.importorskip("py3langid")
    with gzip.open("corpus.jsonl.gz", "wt", encoding="utf-8") as lines:
        lines.writelines(
            json.dumps({"id": number, "text": GERMAN[number % 3]}) + "\n" for number in range(30)
        )
        lines.write("no JSON\n")
    answer = json.loads(manta("init", "corpus.jsonl.gz", "--json").out)
    assert (answer["language"], answer["rows"]) == ("de", 30)
    assert (
        "# The texts seem to be in de; all-MiniLM-L6-v2 knows English only" in Path("night.yaml").read_text()
    )


def test_an_unknown_script_is_named_without_a_language(manta: Manta):
    """The texts have too few words to guess their language."""
    uri = written({"id": list(range(40)), "text": [f"第{number}章 学校" for number in range(40)]})
    ended = manta("init", uri)
    note = "Most texts are Chinese texts; all-MiniLM-L6-v2 knows English only"
    assert note in ended.out
    assert note in Path("night.yaml").read_text()
    assert "is written: 1 file, columns" in ended.out


def test_a_suitable_corpus_has_no_warning(manta: Manta):
    assert (
        "knows English only" not in manta("init", written({"id": [1, 2], "text": ["a dog", "two cats"]})).out
    )


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        (
            {"text": ["a", "b"]},
            [],
            (
                "expected a column of distinct integers or short strings for the id, found the columns "
                "text; name one with --id"
            ),
        ),
        ({"id": [1, 2]}, [], "expected a column of strings for the text, found the columns id"),
        (
            {"id": [1, 2], "text": ["a", "b"]},
            ["--text", "body"],
            "expected a column 'body' for the text, found the columns id, text",
        ),
    ],
)
def test_a_corpus_without_an_id_or_text_column_is_refused(
    table: dict[str, list[Any]], options: list[str], words: str, manta: Manta
):
    ended = manta("init", written(table), *options)
    assert (ended.code, Path("night.yaml").exists()) == (3, False)
    assert words in ended.err


def test_column_names_cannot_inject_settings_and_secrets_are_not_written(manta: Manta):
    uri = written(
        {"id": ["a", "b"], "text": ["one text", "another"], "x\nrelease: {root: elsewhere}\n#": ["p", "q"]}
    )
    assert manta("init", uri).code == 0
    assert load_settings(Job, "night.yaml").release.root == str(Path("out/corpus").absolute())
    forging = written({"id\nforged: yes": ["a", "b"], "text": ["one text", "another"]})
    ended = manta("init", forging, "--output", "other.yaml")
    assert (ended.code, "id\ufffdforged: yes" in ended.out, "\nforged" in ended.out) == (0, True, False)
    for arguments in (("s3://KEY:SECRET@bucket/x",), (uri, "--root", "s3://KEY:SECRET@bucket/x")):
        ended = manta("init", *arguments, "--output", "secret.yaml")
        assert (ended.code, Path("secret.yaml").exists(), "SECRET" in ended.err) == (2, False, False)


END = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z
LATIN_1 = pa.py_buffer(b"okcaf\xe9")
NOT_OF_PYTHON = {
    "9999 in Berlin": pa.array([END, None]).cast(pa.timestamp("us", "Europe/Berlin")),
    "year 10000": pa.array([END + 1, None]).cast(pa.timestamp("us")),
    "year 0": pa.array([-62_135_596_800_000_001, None]).cast(pa.timestamp("us")),
    "far date": pa.array([2**30, None], pa.int32()).cast(pa.date32()),
    "Latin-1": pa.Array.from_buffers(
        pa.string(), 2, [None, pa.array([0, 2, 6], pa.int32()).buffers()[1], LATIN_1]
    ),
}


@pytest.mark.parametrize("name", NOT_OF_PYTHON)
def test_values_that_python_lacks_are_left_out_of_the_guess(name: str, manta: Manta):
    columns = {"id": ["a", "b"], "text": ["one text", "another"], "more": NOT_OF_PYTHON[name]}
    ended = manta("init", written(columns))
    assert ended.code == 0, ended.err
    assert load_settings(Job, "night.yaml").corpus.text == "text"


def test_files_that_a_night_refuses_are_refused_with_its_sentence(manta: Manta):
    Path("rows.json").write_text('[{"id": 1, "text": "a"}]')
    ended = manta("init", "rows.json")
    assert (ended.code, "found a JSON array" in ended.err) == (3, True)
    Path("wide.jsonl").write_text('{"id": 1, "text": "a"}\n', encoding="utf-16")
    ended = manta("init", "wide.jsonl")
    assert (ended.code, "in UTF-8), found lines that are not (invalid_utf8 1" in ended.err) == (3, True)
    Path("saved/train").mkdir(parents=True)
    for name in ("state.json", "dataset_info.json", "data-00000-of-00001.arrow"):
        Path("saved/train", name).write_text("{}")
    for command in (("init", "saved"), ("nightly", "corpus.uri=saved", "release.root=root")):
        ended = manta(*command)
        assert (ended.code, "load_from_disk" in ended.err) == (3, True), ended.err


def test_what_may_change_from_night_to_night_is_said(manta: Manta):
    texts = [f"a text with the number {number}" for number in range(30)]
    rows = {"text": texts, "__index_level_0__": list(range(30))}
    ended = manta("init", written(rows, "docs/train.parquet"))
    assert "__index_level_0__ seem to be row numbers" in ended.out
    assert "seem to be row numbers" in Path("night.yaml").read_text()
    written(rows | {"doc_id": [f"d{number}" for number in range(30)]}, "docs/train.parquet")
    written(rows | {"doc_id": [f"t{number}" for number in range(30)]}, "docs/test.parquet")
    ended = manta("init", "docs", "--output", "splits.yaml")
    assert "id doc_id" in ended.out
    assert "Files of several splits (test, train) are read as one corpus" in ended.out
    repeated = {"text": texts, "id": ["same"] * 30, "key": [f"k{number}" for number in range(30)]}
    ended = manta("init", written(repeated, "repeated.parquet"), "--output", "repeated.yaml")
    assert "The column id is not the id: 29 of 30 rows" in ended.out


def test_long_documents_are_cut_into_chunks(manta: Manta):
    texts = ["word " * (600 if number < 4 else 5) for number in range(10)]
    ended = manta("init", written({"id": list("abcdefghij"), "text": texts}))
    assert load_settings(Job, "night.yaml").corpus.chunk.by == "sentences"
    assert "40% of the texts are longer than all-MiniLM-L6-v2 reads" in ended.out
    short = written({"id": list("abcdefghij"), "text": [text[:25] for text in texts]}, "short.parquet")
    manta("init", short, "--output", "short.yaml")
    assert "chunk:" not in Path("short.yaml").read_text()
