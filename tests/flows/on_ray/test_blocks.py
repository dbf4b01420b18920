"""EncodeBlocks adds a column of vectors to any Ray Dataset."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray.data

from pipeline.errors import DataError
from pipeline.flows.encode.encode import EncodeBlocks
from pipeline.flows.workers.workers import Workers
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.flows.conftest import sentences


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
