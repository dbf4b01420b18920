"""EncodeBlocks adds a column of vectors to any Ray Dataset."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray.data

from pipeline.errors import DataError, ModelError
from pipeline.flows.encode.encode import EncodeBlocks
from pipeline.flows.workers.interface import Workers
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.flows.conftest import sentences
from tests.index.published import choosy_encoder


@pytest.mark.slow
def test_map_batches_adds_vectors_and_keeps_rows(ray_cluster: Workers, encoder: Path):
    texts = [*sentences(120), None, "   "]
    rows = ray.data.from_arrow(pa.table({"number": list(range(122)), "text": texts}))
    encoded = rows.map_batches(
        EncodeBlocks,
        fn_constructor_args=(str(encoder),),
        batch_format="pyarrow",
        batch_size=50,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    ).take_all()
    by_number = {row["number"]: row["vector"] for row in encoded}
    assert len(by_number) == 122
    assert by_number[120] is None
    assert by_number[121] is None
    expected = load_encoder(EncoderSettings(path=str(encoder)), EncodeSettings(), "cpu").encode(
        sentences(120)
    )
    np.testing.assert_array_equal(
        np.array([by_number[number] for number in range(120)], np.float32), expected
    )


@pytest.mark.slow
def test_the_default_format_of_batches_gives_the_same_vectors(ray_cluster: Workers, encoder: Path):
    texts = [*sentences(40), None, "  "]
    rows = ray.data.from_arrow(pa.table({"number": list(range(42)), "text": texts}))
    options = {
        "fn_constructor_args": (str(encoder),),
        "fn_constructor_kwargs": {"error": "why"},
        "batch_size": 16,
        "compute": ray.data.ActorPoolStrategy(size=1),
    }
    found = [
        sorted(rows.map_batches(EncodeBlocks, **options, **more).take_all(), key=lambda row: row["number"])
        for more in ({}, {"batch_format": "pandas"}, {"batch_format": "pyarrow"})
    ]
    for one in found:
        assert [row["why"] for row in one] == [None] * 40 + ["no text"] * 2
        for row, other in zip(one, found[-1], strict=True):
            np.testing.assert_array_equal(row["vector"], other["vector"])


@pytest.mark.parametrize(
    "as_batch", [dict, pa.Table.to_pandas, lambda table: table], ids=("numpy", "pandas", "arrow")
)
def test_a_row_that_cannot_be_encoded_gets_a_null_vector_and_a_reason(encoder: Path, as_batch, capsys):
    blocks = EncodeBlocks(str(encoder), error="why")
    blocks._encoder = choosy_encoder(encoder)
    texts = ["two dogs", None, "a \u2603", " ", "a girl"]
    table = pa.table({"number": range(5), "text": texts})
    batch = {"number": np.arange(5), "text": np.array(texts, object)} if as_batch is dict else as_batch(table)
    found = blocks(batch)
    raised = "IndexError: index out of range in self"
    assert found["why"].to_pylist() == [None, "no text", raised, "no text", None]
    assert [vector is None for vector in found["vector"].to_pylist()] == [False, True, True, True, False]
    np.testing.assert_array_equal(
        found["vector"][4].as_py(), EncodeBlocks(str(encoder))(table)["vector"][4].as_py()
    )
    assert (
        f"1 of 5 rows of a batch have a text and no vector; the first, row 2: {raised}"
        in capsys.readouterr().err
    )


def test_a_text_that_is_not_utf8_gets_a_null_vector_and_a_reason(encoder: Path):
    for kind in (pa.string(), pa.large_string()):
        texts = pa.array(
            [b"two dogs", b"caf\xe9", None, b"a girl"],
            pa.binary() if kind == pa.string() else pa.large_binary(),
        ).view(kind)
        for column in (texts, texts.dictionary_encode() if kind == pa.string() else texts):
            found = EncodeBlocks(str(encoder), error="why")(pa.table({"text": column}))
            assert found["why"].to_pylist() == [None, "the text is not valid UTF-8", "no text", None]


def test_a_column_of_other_values_is_named_with_its_type(encoder: Path):
    with pytest.raises(
        DataError, match=r"a column 'text' of texts, found a column of type list<item: int64>"
    ):
        EncodeBlocks(str(encoder))(pa.table({"text": [[1], [2]]}))


def test_an_encoder_that_encodes_nothing_ends_the_job(encoder: Path):
    blocks = EncodeBlocks(str(encoder))
    blocks._encoder = broken = choosy_encoder(encoder)
    broken.is_broken = True
    with pytest.raises(ModelError, match="encodes a plain sentence"):
        blocks(pa.table({"text": ["two dogs"]}))


def test_a_missing_text_column_is_named(encoder: Path):
    with pytest.raises(DataError, match=r"text column 'text'.*columns number"):
        EncodeBlocks(str(encoder))(pa.table({"number": [1]}))


def test_a_column_that_the_vectors_would_overwrite_is_named(encoder: Path):
    block = pa.table({"text": ["a dog"], "vector": [1], "other": [2]})
    with pytest.raises(DataError, match=r"no column 'vector', which.*columns text, vector, other"):
        EncodeBlocks(str(encoder))(block)
    assert EncodeBlocks(str(encoder), vector="mine")(block).column_names == [
        "text",
        "vector",
        "other",
        "mine",
    ]
