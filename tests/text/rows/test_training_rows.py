"""Training rows: roles, labels, scores, missing texts, and errors that name file, row and column."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from pipeline.errors import DataError
from pipeline.log import listening
from pipeline.settings.training import NEGATIVES, OrderSettings, SourceSettings, Values
from pipeline.text.rows.batches import rank_rows
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows

NLI = ["premise", "hypothesis", "label"]


def write_parquet(path: Path, columns: dict[str, Any], group: int = 3) -> str:
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return str(path)


def read_all(pairs: TrainingRows) -> dict[str, list[Any]]:
    return pa.concat_tables(pairs.read(pairs.spans())).to_pydict()


@pytest.mark.parametrize(
    "labels",
    [
        [0, -1, 2, 1, 0, -1, -1, -1],
        ["entailment", "-", "contradiction", "neutral", "entailment", "-", "-", "-"],
        pa.array(
            ["entailment", "-", "contradiction", "neutral", "entailment", "-", "-", "-"]
        ).dictionary_encode(),
    ],
)
def test_labels_become_indices_and_rows_without_a_label_are_counted(tmp_path: Path, labels: Any):
    texts = [f"premise {row}" for row in range(8)]
    uri = write_parquet(tmp_path / "nli.parquet", {"premise": texts, "hypothesis": texts, "gold": labels})
    pairs = open_training_rows(SourceSettings(uri=uri, columns={"label": "gold"}), NLI)
    rows = read_all(pairs)
    assert rows["label"] == [0, 2, 1, 0]
    assert rows["row"] == [0, 2, 3, 4]
    assert rows["premise"] == [texts[row] for row in rows["row"]]
    assert (len(pairs), pairs.counts) == (4, {"rows": 8, "unlabelled": 4, "missing": 0})


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([0, 1, 7, 0], "7"),
        (pa.array([0, 1, 2**63 + 1, 0], pa.uint64()), "9223372036854775809"),
        (["neutral", "entailment", "Neutral", "-"], "'Neutral'"),
        ([0, 1, None, 0], "None"),
        ([0, 1, -2, 0], "-2"),
    ],
)
def test_invalid_label_names_file_row_and_valid_labels_when_the_files_are_opened(
    tmp_path: Path, labels: list[Any], found: str
):
    uri = write_parquet(
        tmp_path / "nli.parquet", {"premise": ["a"] * 4, "hypothesis": ["b"] * 4, "label": labels}
    )
    expected = rf"one of entailment \(0\), neutral \(1\), contradiction \(2\), found {found};"
    with pytest.raises(DataError, match=rf"nli.parquet: row 2 .* {expected}"):
        open_training_rows(SourceSettings(uri=uri), NLI)


def test_positions_up_to_the_largest_int64_are_read_and_larger_ones_refused(tmp_path: Path):
    roles = ["text", "document", "position"]
    columns = {"text": ["a", "b"], "document": ["d", "d"]}
    for positions in ([2**63 - 2, 2**63 - 1], [2**63 - 1, 2**63]):
        uri = write_parquet(
            tmp_path / "rows.parquet", columns | {"position": pa.array(positions, pa.uint64())}
        )
        pairs = open_training_rows(SourceSettings(uri=uri), roles)
        if positions[1] < 2**63:
            assert read_all(pairs)["position"] == positions
            continue
        with pytest.raises(DataError, match=r"row 1 .*position: expected an integer below 2\^63, found 922"):
            read_all(pairs)


def test_scores_are_scaled_to_zero_to_one(tmp_path: Path):
    uri = write_parquet(
        tmp_path / "sick.parquet", {"sentence1": ["a"] * 3, "sentence2": ["b"] * 3, "score": [1.0, 3.0, 5.0]}
    )
    roles = ["sentence1", "sentence2", "score"]
    assert read_all(open_training_rows(SourceSettings(uri=uri, values=Values(score_range=(1, 5))), roles))[
        "score"
    ] == [
        0,
        0.5,
        1,
    ]
    assert read_all(open_training_rows(SourceSettings(uri=uri), roles))["score"] == [0.2, 0.6, 1]
    with pytest.raises(DataError, match=r"row 2 .* a number from 0 to 4, found 5.0"):
        open_training_rows(SourceSettings(uri=uri, values=Values(score_range=(0, 4))), roles)


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_missing_or_nan_score_is_refused(tmp_path: Path, bad: float | None):
    uri = write_parquet(
        tmp_path / "sts.parquet", {"sentence1": ["a"] * 3, "sentence2": ["b"] * 3, "score": [1.0, bad, 5.0]}
    )
    with pytest.raises(DataError, match="row 1"):
        open_training_rows(SourceSettings(uri=uri), ["sentence1", "sentence2", "score"])


def test_missing_text_becomes_one_blank_and_is_counted(tmp_path: Path):
    uri = write_parquet(
        tmp_path / "pairs.parquet", {"anchor": ["a", None, "c"], "positive": ["x", "y", None]}
    )
    order = ShuffledOrder(
        open_training_rows(SourceSettings(uri=uri), ["anchor", "positive"], ["negative"]),
        OrderSettings(batch_rows=3),
    )
    rows = next(rank_rows(order, 0))
    by_row = {
        int(row): (anchor, positive)
        for row, anchor, positive in zip(
            rows.rows, rows.columns["anchor"], rows.columns["positive"], strict=True
        )
    }
    assert by_row == {0: ("a", "x"), 1: (" ", "y"), 2: ("c", " ")}
    assert rows.counts == {"repeated": 1, "exchanged": 0, "blank": 2}  # two rows share the blank text


def test_an_optional_column_is_read_if_all_files_have_it_or_the_settings_name_it(tmp_path: Path):
    columns = {"anchor": ["a"], "positive": ["b"]}
    first = write_parquet(tmp_path / "first.parquet", columns | {"negative": ["c"]})
    roles, optional = ["anchor", "positive"], ["negative"]
    with listening() as heard:
        assert open_training_rows(SourceSettings(uri=first), roles, optional).roles == (*roles, "negative")
        write_parquet(tmp_path / "second.parquet", columns)
        assert not heard
        assert open_training_rows(SourceSettings(uri=str(tmp_path)), roles, optional).roles == tuple(roles)
    assert [line.partition(": ")[2] for line in heard] == [
        "1 of 2 files have a column negative, so it is not used"
    ]
    for uri, column in ((str(tmp_path), "negative"), (first, "negatives")):
        named = SourceSettings(uri=uri, columns={"negative": column})
        with pytest.raises(DataError, match=f"a column '{column}' for the role negative"):
            open_training_rows(named, roles, optional)


@pytest.mark.parametrize(("text", "blank"), [("", 1), (" \t\u3000\n", 1), ("\u200b", 0), (" a", 0)])
def test_texts_of_white_space_are_counted_as_blank(tmp_path: Path, text: str, blank: int):
    rows = open_training_rows(
        SourceSettings(uri=write_parquet(tmp_path / "text.parquet", {"text": ["x", text]})), ["text"]
    )
    assert next(rank_rows(ShuffledOrder(rows, OrderSettings(batch_rows=2)), 0)).counts["blank"] == blank


def texts_with_gaps(rows: int, proportion: float, rng: np.random.Generator) -> list[str | None]:
    return [
        None if is_missing else f"text {row}" for row, is_missing in enumerate(rng.random(rows) < proportion)
    ]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    "proportions", [(0, 0, 0), (0.3, 0, 0), (0.2, 0.5, 0), (1, 0.5, 0), (1, 1, 1), (0.1, 0.1, 0.1), (0, 1, 0)]
)
def test_missing_drop_leaves_out_and_counts_rows_without_a_text(
    tmp_path: Path, proportions: tuple[float, ...], statistics: bool
):
    rng = np.random.default_rng(len(proportions))
    columns = {
        name: texts_with_gaps(40, proportion, rng)
        for name, proportion in zip(("a", "b", "unread"), proportions, strict=True)
    } | {"read_all": [f"{row}" for row in range(40)]}
    schema = pa.schema([(name, pa.string()) for name in columns])
    pq.write_table(
        pa.table(columns, schema=schema),
        tmp_path / "x.parquet",
        row_group_size=7,
        write_statistics=statistics,
    )
    settings = SourceSettings(
        uri=str(tmp_path), columns={"anchor": "a", "positive": "b", "negative": "read_all"}, missing="drop"
    )
    expected = [row for row in range(40) if columns["a"][row] is not None and columns["b"][row] is not None]
    if not expected:
        with pytest.raises(DataError, match="rows to train on, found 40 rows, none of them with every text;"):
            open_training_rows(settings, ["anchor", "positive", "negative"])
        return
    pairs = open_training_rows(settings, ["anchor", "positive", "negative"])
    assert (len(pairs), pairs.counts) == (
        len(expected),
        {"rows": 40, "unlabelled": 0, "missing": 40 - len(expected)},
    )
    assert read_all(pairs) == {
        role: [columns[name][row] for row in expected] for role, name in settings.columns.items()
    } | {"row": expected}
    assert pa.concat_tables(pairs.read(pairs.spans(), ["negative"])).to_pydict() == {
        "negative": [str(row) for row in expected],
        "row": expected,
    }
    order = ShuffledOrder(pairs, OrderSettings(batch_rows=1, window_rows=5))
    epoch = [next(batches).rows[0] for batches in [rank_rows(order, 0)] for _ in expected]
    assert sorted(epoch) == expected


def test_row_without_a_label_is_excluded_before_its_text_and_score_are_checked(
    tmp_path: Path,
):
    uri = write_parquet(
        tmp_path / "x.parquet",
        {
            "premise": ["a", None, None, "d", "e"],
            "hypothesis": ["a", "b", "c", None, "e"],
            "label": [0, -1, 1, 2, -1],
        },
        group=2,
    )
    pairs = open_training_rows(SourceSettings(uri=uri, missing="drop"), NLI)
    assert (len(pairs), pairs.counts) == (1, {"rows": 5, "unlabelled": 2, "missing": 2})
    assert read_all(pairs) == {"premise": ["a"], "hypothesis": ["a"], "label": [0], "row": [0]}
    uri = write_parquet(
        tmp_path / "y.parquet",
        {"sentence1": ["a", None, "c"], "sentence2": ["a", "b", "c"], "score": [1.0, None, 2.0]},
    )
    assert read_all(
        open_training_rows(SourceSettings(uri=uri, missing="drop"), ["sentence1", "sentence2", "score"])
    )["score"] == [0.2, 0.4]


def test_a_second_negative_needs_a_first_one(tmp_path: Path):
    write_parquet(tmp_path / "x.parquet", {"anchor": ["a"], "positive": ["b"], "neutral": ["c"]})
    settings = SourceSettings(uri=str(tmp_path), columns={"negative2": "neutral"})
    with pytest.raises(DataError, match="a column with the role negative, beside that of negative2"):
        open_training_rows(settings, ["anchor", "positive"], ["negative", "negative2"])


def test_optional_roles_are_read_if_every_file_has_them(tmp_path: Path):
    triples = {"anchor": ["a"], "positive": ["b"], "negative": ["c"]}
    write_parquet(tmp_path / "1.parquet", triples)
    settings = SourceSettings(uri=f"{tmp_path}/*.parquet")
    assert open_training_rows(settings, ["anchor", "positive"], ["negative"]).roles == (
        "anchor",
        "positive",
        "negative",
    )
    write_parquet(tmp_path / "2.parquet", {"anchor": ["d"], "positive": ["e"]})
    assert open_training_rows(settings, ["anchor", "positive"], ["negative"]).roles == ("anchor", "positive")
    assert read_all(open_training_rows(settings, ["anchor", "positive"])) == {
        "anchor": ["a", "d"],
        "positive": ["b", "e"],
        "row": [0, 1],
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"anchor": ["a"], "positve": ["b"]},
            "a column 'positive' for the role positive, "
            "found the columns anchor, positve; .* did you mean 'positve'",
        ),
        (
            {"anchor": ["a"], "positive": [1]},
            "a column of strings for the role positive, found 'positive' of type int64",
        ),
        ({"anchor": [], "positive": []}, "rows to train on, found no row"),
    ],
)
def test_unusable_columns_are_refused(tmp_path: Path, columns: dict[str, Any], message: str):
    uri = write_parquet(tmp_path / "pairs.parquet", columns)
    with pytest.raises(DataError, match=message):
        open_training_rows(SourceSettings(uri=uri), ["anchor", "positive"])


def test_missing_or_unreadable_files_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="nothing there; check the URI of the training rows"):
        open_training_rows(SourceSettings(uri=str(tmp_path / "absent")), ["text"])
    (tmp_path / "x.parquet").write_text("no Parquet")
    with pytest.raises(DataError, match=r"x.parquet.*in Parquet files: write them to one, or fix this file$"):
        open_training_rows(SourceSettings(uri=str(tmp_path)), ["text"])
    with pytest.raises(ValidationError, match="did you mean 'anchor'"):
        SourceSettings(uri="x", columns={"ancor": "a"})


def test_json_lines_are_refused_as_training_rows(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text('{"premise": "a", "hypothesis": "b", "label": 0}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl: .*training rows must be in Parquet files"):
        open_training_rows(SourceSettings(uri=str(tmp_path / "rows.jsonl")), NLI)


def test_invalid_utf8_names_its_row(tmp_path: Path):
    binary = pa.array([b"fine", b"\xff\xfe", b"fine"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, binary.buffers())
    pairs = open_training_rows(
        SourceSettings(uri=write_parquet(tmp_path / "x.parquet", {"text": text})), ["text"]
    )
    with pytest.raises(DataError, match=r"row 1 .* text in UTF-8"):
        read_all(pairs)


def test_file_that_changed_after_opening_is_refused(tmp_path: Path):
    uri = write_parquet(tmp_path / "x.parquet", {"text": ["a"] * 9}, group=9)
    pairs = open_training_rows(SourceSettings(uri=uri), ["text"])
    write_parquet(tmp_path / "x.parquet", {"text": ["a"] * 5}, group=9)
    with pytest.raises(DataError, match=r"9 rows in row group 0, as when training began, found 5"):
        read_all(pairs)


def test_pickled_training_rows_read_the_same_rows(tmp_path: Path):
    uri = write_parquet(tmp_path / "x.parquet", {"text": ["a", "b", "c", "d"]}, group=2)
    pairs = open_training_rows(SourceSettings(uri=uri), ["text"])
    assert (
        read_all(pickle.loads(pickle.dumps(pairs)))
        == read_all(pairs)
        == {"text": ["a", "b", "c", "d"], "row": [0, 1, 2, 3]}
    )


PROGRAM = """
import re, sys
from itertools import islice
from pipeline.text.rows.batches import rank_rows
from pipeline.settings.training import OrderSettings
from pipeline.text.rows.order import ShuffledOrder
from pipeline.settings.training import SourceSettings
from pipeline.text.rows.training_rows import open_training_rows
def peak_kib():  # not getrusage, which also counts the process that this one was forked from
    return int(re.search("VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read())[1])
texts = open_training_rows(SourceSettings(uri=sys.argv[1]), ["text"])
order = ShuffledOrder(texts, OrderSettings(batch_rows=512))
before = peak_kib()
rows = sum(len(batch) for batch in islice(rank_rows(order, 0), order.steps_per_epoch))
print(rows, peak_kib() - before)
"""


@pytest.mark.parametrize("group", [1_000_000, 50_000])
def test_a_million_rows_are_read_in_less_memory_than_they_occupy(tmp_path: Path, group: int):
    words = "a long sentence, so that a million of them need far more memory than the rows of a window do "
    numbers = pa.array(np.arange(1_000_000)).cast(pa.string())
    table = pa.table({"text": pc.binary_join_element_wise(4 * words, numbers, "")})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=group, use_dictionary=False)
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True
    )
    rows, kib = map(int, process.stdout.split())
    assert rows == 1_000_000 - 1_000_000 % 512
    assert kib < 320 * 1024  # all rows are 385 MB, held once; a window of 65,536 of them is 25 MB


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        (
            [0.0, 0.25, 1.0],
            "scores are 0 to 1 of a range of 0 to 5, so targets are only 0 to 0.2; set values",
        ),
        ([4.0, 5.0], "scores are 4 to 5 of a range of 0 to 5, so targets are only 0.8 to 1"),
        ([0.0, 2.5], None),
        ([0.0, 5.0], None),
    ],
)
def test_a_range_that_is_not_used_is_a_warning(tmp_path: Path, scores: list[float], sentence: str | None):
    texts = [f"text {row}" for row in range(len(scores))]
    rows = pa.table({"sentence1": texts, "sentence2": texts, "score": scores})
    for part in range(2):  # the range is that of all files together
        pq.write_table(rows.slice(part, None if part else 1), tmp_path / f"{part}.parquet")
    with listening() as said:
        open_training_rows(SourceSettings(uri=str(tmp_path)), ["sentence1", "sentence2", "score"])
    assert [one for one in said if "range" in one] == said
    assert (sentence is None) == (not said)
    assert sentence is None or sentence in said[0]


@pytest.mark.parametrize(
    ("names", "unused"),
    [
        (["negative_1", "negative_2"], ["negative_2"]),
        (["negative", "negative_1", "negative2"], ["negative_1", "negative2"]),
        (["hard_negative"], ["hard_negative"]),
    ],
)
def test_columns_that_look_like_negatives_and_are_not_used_are_a_warning(
    tmp_path: Path, names: list[str], unused: list[str]
):
    columns = ["anchor", "positive", *names]
    pq.write_table(pa.table({name: ["a text"] for name in columns}), tmp_path / "rows.parquet")
    with listening() as said:
        settings = SourceSettings(uri=str(tmp_path / "rows.parquet"))
        open_training_rows(settings, ["anchor", "positive"], ["negative"])
    [sentence] = said
    assert f"not used: {', '.join(unused)};" in sentence
    with listening() as said:
        named = dict(zip(NEGATIVES, names, strict=False))
        settings = SourceSettings(uri=str(tmp_path / "rows.parquet"), columns=named)
        open_training_rows(settings, ["anchor", "positive"], NEGATIVES)
    assert not said


@pytest.mark.parametrize("statistics", [True, False])
def test_a_row_without_the_negative_that_an_objective_needs_is_left_out_and_counted(
    tmp_path: Path, statistics: bool
):
    """With a blank instead, a triplet loss would push anchors away from the vector of an empty text."""
    rows = pa.table({"anchor": ["a", None, "c"], "positive": ["x", "y", "z"], "negative": ["m", "n", None]})
    pq.write_table(rows, tmp_path / "rows.parquet", write_statistics=statistics)
    with listening() as said:
        pairs = open_training_rows(
            SourceSettings(uri=str(tmp_path / "rows.parquet")), ["anchor", "positive", "negative"]
        )
    assert read_all(pairs)["negative"] == ["m", "n"]
    assert pairs.counts == {"rows": 3, "unlabelled": 0, "missing": 1}
    assert "1 of 3 rows left out, which have no text of the role negative" in said[0]
    assert not statistics or "missing texts of the role anchor: 1; each read as one blank" in said[1]


@pytest.mark.parametrize("missing", ["blank", "drop"])
def test_a_row_with_a_blank_in_place_of_the_negative_that_an_objective_needs_is_left_out(
    tmp_path: Path, missing: Literal["blank", "drop"]
):
    rows = pa.table({"anchor": [*"abcd"], "positive": [*"wxyz"], "negative": [" ", "m", "", "\u3000\n"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    settings = SourceSettings(uri=str(tmp_path / "rows.parquet"), missing=missing)
    pairs = open_training_rows(settings, ["anchor", "positive", "negative"])
    assert read_all(pairs)["negative"] == ["m"]
    assert pairs.counts == {"rows": 4, "unlabelled": 0, "missing": 3}
    batch = next(rank_rows(ShuffledOrder(pairs, OrderSettings(batch_rows=1)), 0))
    assert "without_negative" not in batch.counts


def test_missing_optional_negatives_are_counted_and_keep_their_rows(tmp_path: Path):
    rows = pa.table({"anchor": ["a", "b", "c"], "positive": ["x", "y", "z"], "negative": ["m", " ", None]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    with listening() as said:
        pairs = open_training_rows(
            SourceSettings(uri=str(tmp_path / "rows.parquet")), ["anchor", "positive"], ["negative"]
        )
    assert len(pairs) == 3
    assert "missing texts of the role negative: 1; their rows have no such candidate" in said[0]
    batch = next(rank_rows(ShuffledOrder(pairs, OrderSettings(batch_rows=3)), 0))
    assert batch.counts == {"repeated": 0, "exchanged": 0, "blank": 0, "without_negative": 2}
    assert batch.false_negatives["anchor"][:, 3:].sum() == 3 * 2
