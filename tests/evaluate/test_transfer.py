"""Transfer tasks: nested cross-validation matches scikit-learn; missing parts are reported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.solvers.logistic import Lbfgs
from pipeline.settings import EvaluateSettings
from tests.evaluate.files import save, task_of
from tests.evaluate.test_solvers import clouds

QUICK = EvaluateSettings(folds=3, seed=7)


def classified(
    folder: Path, classes: int = 2, rows: int = 240, name: str = "MR", **changed: Any
) -> tuple[Path, Any, np.ndarray, np.ndarray]:
    """Write a file; return the task, its vectors, and the arrays of both."""
    x, y = clouds(classes, rows=rows, spread=2.5)
    texts = [f"t{row}" for row in range(rows)]
    file = save(folder / f"{name}.parquet", {"text": texts, "label": y} | changed)
    table = dict(zip(texts, x, strict=True))
    return (
        file,
        lambda sentences: np.stack([table[sentence] for sentence in sentences]),
        x.astype(np.float64),
        y,
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_nested_cross_validation_matches_scikit_learn(tmp_path: Path, classes: int):
    file, vectors, x, y = classified(tmp_path, classes, split=["cv"] * 240)
    folds = StratifiedKFold(3, shuffle=True, random_state=7)
    search = GridSearchCV(
        LogisticRegression(tol=1e-8, max_iter=10_000), {"C": list(Lbfgs.strengths)}, cv=folds
    )
    expected = 100 * cross_val_score(search, x, y, cv=folds)
    task = task_of("transfer", file, QUICK)
    score = task.score(vectors)
    assert score.value == pytest.approx(expected.mean(), abs=1e-9)
    assert score.metric == "accuracy x100, lbfgs, nested 3-fold cross-validation"
    assert (score.count, score.facts["missing_splits"], score.facts["texts"], score.warnings) == (
        240,
        [],
        {"cv": 240},
        (),
    )
    assert len(score.facts["chosen"]) == 3
    assert task.statistic(score.evidence, np.arange(240)) == pytest.approx(score.value)


def test_the_strength_is_chosen_on_dev(tmp_path: Path):
    split = np.array(["train"] * 120 + ["dev"] * 60 + ["test"] * 60)
    file, vectors, x, y = classified(tmp_path, name="SST2", split=split)
    models = [
        LogisticRegression(C=C, tol=1e-8, max_iter=10_000).fit(x[:120], y[:120]) for C in Lbfgs.strengths
    ]
    best = models[int(np.argmax([model.score(x[120:180], y[120:180]) for model in models]))]
    score = task_of("transfer", file, QUICK).score(vectors)
    assert score.value == pytest.approx(100 * best.score(x[180:], y[180:]))
    assert score.facts["chosen"] == [best.C]
    assert (score.count, score.metric, score.warnings) == (
        60,
        "accuracy x100, lbfgs, chosen on dev, test",
        (),
    )


def test_without_dev_the_strength_is_chosen_by_cross_validation(tmp_path: Path):
    split = np.array(["train"] * 180 + ["test"] * 60)
    file, vectors, x, y = classified(tmp_path, 3, name="TREC", split=split)
    folds = StratifiedKFold(3, shuffle=True, random_state=7)
    search = GridSearchCV(
        LogisticRegression(tol=1e-8, max_iter=10_000), {"C": list(Lbfgs.strengths)}, cv=folds
    ).fit(x[:180], y[:180])
    score = task_of("transfer", file, QUICK).score(vectors)
    assert score.value == pytest.approx(100 * search.score(x[180:], y[180:]))
    assert score.facts["chosen"] == [search.best_params_["C"]]
    assert "by 3-fold cross-validation on train, test" in score.metric


@pytest.mark.parametrize("dev", [False, True])
def test_the_learning_curve_matches_classifiers_of_the_drawn_texts(tmp_path: Path, dev: bool):
    split = np.array(["train"] * 130 + ["dev" if dev else "train"] * 50 + ["test"] * 60)
    file, vectors, x, y = classified(tmp_path, name="own", split=split)
    options = {"curve_seeds": 2, "curve_first": 60}
    score = task_of("transfer", file, QUICK, options=options).score(vectors)
    expected: dict[int, list[float]] = {60: [], 120: []}
    for seed in range(2):
        shuffled = np.random.default_rng((7, seed)).permutation(np.flatnonzero(split == "train"))
        for count, accuracies in expected.items():
            drawn = shuffled[:count]
            folds = StratifiedKFold(3, shuffle=True, random_state=7).split(x[drawn], y[drawn])
            if dev:
                joined = np.concatenate([drawn, np.arange(130, 180)])
                folds = [(np.arange(count), np.arange(count, count + 50))]
            else:
                joined = drawn
            search = GridSearchCV(
                LogisticRegression(tol=1e-8, max_iter=10_000),
                {"C": list(Lbfgs.strengths)},
                cv=list(folds),
                refit=False,
            ).fit(x[joined], y[joined])
            model = LogisticRegression(tol=1e-8, max_iter=10_000, **search.best_params_).fit(
                x[drawn], y[drawn]
            )
            accuracies.append(100 * model.score(x[180:], y[180:]))
    assert list(score.facts["learning_curve"]) == ["60", "120"]
    for count, accuracies in expected.items():
        assert score.metrics[f"accuracy, {count} training texts"] == pytest.approx(np.mean(accuracies))
        spread = score.facts["learning_curve"][str(count)]["standard_deviation"]
        assert spread == pytest.approx(np.std(accuracies))
    assert score.value == task_of("transfer", file, QUICK).score(vectors).value


def test_a_learning_curve_without_a_test_part_and_of_too_few_texts_warns(tmp_path: Path):
    file, vectors, _, _ = classified(tmp_path)
    score = task_of("transfer", file, QUICK, options={"curve_seeds": 1, "curve_first": 80}).score(vectors)
    assert list(score.facts["learning_curve"]) == ["80"]  # two folds of three are 160 texts
    assert "on the first of 3 folds" in score.warnings[0]
    few = task_of("transfer", file, QUICK, options={"curve_seeds": 1}).score(vectors)
    assert "learning_curve" not in few.facts
    assert "has at most 1,000 training texts" in few.warnings[0]


def test_without_a_test_part_the_learning_curve_is_that_of_the_training_rows(tmp_path: Path):
    split = np.resize(["train", "train", "dev"], 240)
    y = np.random.default_rng(0).integers(0, 2, 240)  # at random, so that the penalty changes the accuracy
    file, vectors, _, _ = classified(tmp_path, split=split, label=y)
    rows = np.flatnonzero(split == "train")
    alone = save(tmp_path / "alone.parquet", {"text": [f"t{row}" for row in rows], "label": y[rows]})
    options = {"curve_seeds": 2, "curve_first": 50}
    found, expected = (
        task_of("transfer", each, QUICK, options=options).score(vectors).facts["learning_curve"]
        for each in (file, alone)
    )
    assert set(found) == {"50", "100"}
    assert found == expected


@pytest.mark.parametrize(
    ("folds", "split", "first", "message"),
    [
        (10, "cv", 9, "10 texts of one class and 2 of another, .* among 9 texts; .* or lower evaluate.folds"),
        (3, "dev", 1, "1 text of one class and 1 of another, .*, found 1 and 0 among 1 text; raise"),
    ],
)
def test_a_learning_curve_of_too_few_texts_for_the_folds_is_refused(
    tmp_path: Path, folds: int, split: str, first: int, message: str
):
    splits = ["cv"] if split == "cv" else ["train", "dev", "test"]
    file, _, _, _ = classified(tmp_path, split=np.resize(splits, 240), label=np.arange(240) // 3 % 2)
    settings, options = EvaluateSettings(folds=folds), {"curve_seeds": 1, "curve_first": first}
    with pytest.raises(DataError, match=message):
        task_of("transfer", file, settings, options=options)


@pytest.mark.parametrize(
    ("name", "splits", "missing"),
    [
        ("TREC", ["train"], ["test"]),
        ("SST2", ["train", "test"], ["dev"]),
        ("SST5", ["train", "dev"], ["test"]),
    ],
)
def test_a_missing_part_is_reported(tmp_path: Path, name: str, splits: list[str], missing: list[str]):
    file, vectors, _, _ = classified(tmp_path, name=name, split=np.resize(splits, 240))
    score = task_of("transfer", file, QUICK).score(vectors)
    assert score.facts["missing_splits"] == missing
    assert f"the {missing[0]} part is missing" in score.warnings[0]
    assert ("nested 3-fold cross-validation on train" in score.metric) == ("test" in missing)
    assert set(score.facts["texts"]) == ({"train"} if "test" in missing else {"train", "test"})


def test_features_of_pairs_are_difference_and_product(tmp_path: Path):
    x, y = clouds(2, rows=200)
    u, v = x[:, :6], x[:, 6:]
    file = save(
        tmp_path / "MRPC.parquet",
        {
            "sentence1": [f"u{i}" for i in range(200)],
            "sentence2": [f"v{i}" for i in range(200)],
            "label": y,
            "split": ["train"] * 150 + ["test"] * 50,
        },
    )
    table = {f"{side}{i}": rows[i] for side, rows in (("u", u), ("v", v)) for i in range(200)}
    score = task_of("transfer", file, QUICK).score(
        lambda sentences: np.stack([table[sentence] for sentence in sentences])
    )
    features = np.c_[np.abs(u - v), u * v].astype(np.float64)
    model = LogisticRegression(C=score.facts["chosen"][0], tol=1e-8, max_iter=10_000).fit(
        features[:150], y[:150]
    )
    assert score.value == pytest.approx(100 * model.score(features[150:], y[150:]))
    assert score.metrics["F1"] == pytest.approx(100 * f1_score(y[150:], model.predict(features[150:])))
    assert score.facts["features"] == "|u-v|, u*v"


def test_both_solvers_have_similar_accuracies(tmp_path: Path):
    x, y = clouds(2, rows=1_500, spread=0.8, offset=0)
    file = save(tmp_path / "own.parquet", {"text": [f"t{row}" for row in range(1_500)], "label": y})
    convex, adam = (
        task_of("transfer", file, EvaluateSettings(folds=2, solver=solver)) for solver in ("lbfgs", "sgd")
    )
    scores = [task.score(lambda sentences: x) for task in (convex, adam)]
    assert [score.facts["solver"] for score in scores] == ["lbfgs", "sgd"]
    assert "sgd" in scores[1].metric
    assert scores[1].value == pytest.approx(scores[0].value, abs=8)  # early stopping uses 38 texts here
    assert convex.digest != adam.digest


def test_labels_may_be_strings_and_missing_labels_are_ignored(tmp_path: Path):
    _, y = clouds(2, rows=240)
    file, vectors, _, _ = classified(tmp_path, label=[None, None, *np.array(["bad", "good"])[y[2:]].tolist()])
    score = task_of("transfer", file, QUICK).score(vectors)
    assert (score.count, score.facts["without_label"]) == (238, 2)
    assert set(score.facts["classes"]) == {"bad", "good"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": [1] * 240}, "a single class: 240 texts"),
        (
            {"split": ["train"] * 200 + ["test"] * 40, "label": [0, 1] * 100 + [1] * 40},
            "at least two classes in the split test, found a single class: 40",
        ),
        ({"split": ["training"] * 240}, "the split cv for all rows, or train, dev and test, found training"),
        ({"split": ["test"] * 240}, "found test"),
        ({"split": [None] + ["cv"] * 239}, "1 rows without"),
        (
            {"label": [2] + [0, 1] * 119 + [0]},
            "at least 3 training texts of every class in the split cv, found 1 of 2",
        ),
        (
            {"label": [2] + [0, 1] * 119 + [0], "split": ["test"] + ["train"] * 120 + ["test"] * 119},
            "found 0 of 2",
        ),
        (
            {"label": [2] + [0, 1] * 119 + [0], "split": ["train"] * 200 + ["dev"] * 40},
            "at least 3 training texts of every class in the split train, found 1 of 2",
        ),
    ],
)
def test_unsuitable_splits_and_classes_are_refused(tmp_path: Path, changed: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        task_of("transfer", classified(tmp_path, **changed)[0], QUICK)


def test_too_many_folds_and_unknown_options_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"lower evaluate\.folds"):
        task_of("transfer", classified(tmp_path, rows=12)[0], EvaluateSettings(folds=10))
    with pytest.raises(ConfigError, match="a known key"):
        task_of("transfer", classified(tmp_path)[0], QUICK, options={"C": 1})
