"""The examples of CONTRIBUTING.md register themselves and work."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from pipeline.augment import AUGMENTERS, keyed_rng
from pipeline.config import validated
from pipeline.evaluate import TASKS
from pipeline.objectives import OBJECTIVES
from pipeline.registry import Registry
from pipeline.settings import CorpusSettings, WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.text.formats.reject_rows import RawBatch
from pipeline.text.ingest.corpus_record import reading_digest
from pipeline.transforms.chain import fit_transform
from pipeline.transforms.transform import TRANSFORMS, load_transform
from tests.conftest import ROOT
from tests.evaluate.files import random_vectors, save, task_of
from tests.flows.documents.documents import python_blocks
from tests.objectives.tiny import Tiny, batch_of, texts

BLOCKS = python_blocks(ROOT / ".github" / "CONTRIBUTING.md")
Example = Callable[[str], ModuleType]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Example:
    """Return a function that runs the block with the given words as a module, until the end of the test."""
    registries: tuple[Registry, ...] = (AUGMENTERS, OBJECTIVES, TASKS, TRANSFORMS)
    for registry in registries:
        registry.names()
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))

    def run(words: str) -> ModuleType:
        (block,) = (block for block in BLOCKS if words in block)
        module = ModuleType("example")
        monkeypatch.setitem(sys.modules, "example", module)
        exec(block, module.__dict__)
        return module

    return run


def test_every_code_block_has_a_test():
    assert len(BLOCKS) == 6


def test_the_example_objective_computes_its_loss(example: Example):
    example('register("agreement")')
    objective = OBJECTIVES["agreement"](Tiny())
    batch = batch_of({"anchor": texts(4, 0), "positive": texts(4, 1)})
    reps = tuple(view.encode().detach() for view in objective.views(batch))
    left, right = (rep.numpy() / np.linalg.norm(rep, axis=1, keepdims=True) for rep in reps)
    found = objective.loss(reps, batch).total.item()
    assert found == pytest.approx(np.mean((1 - (left * right).sum(axis=1)) ** 2))


def test_the_example_augmentation_rotates_words(example: Example):
    example('register("rotate")')
    rotate = validated(AUGMENTERS["rotate"], {}, "rotate").start()
    words = ["a", "b", "c", "d"]
    variants = {"".join(rotate(words, keyed_rng(seed))) for seed in range(50)}
    assert variants == {"abcd", "bcda", "cdab", "dabc"}


def test_the_example_transform_subtracts_the_mean(example: Example):
    example('register("centre")')
    x = np.random.default_rng(0).normal(3, size=(500, 8)).astype(np.float32)
    fitted = fit_transform(Moments.of(x), WhitenSettings(transform="centre"), "raw")
    np.testing.assert_allclose(fitted(x), x - x.mean(axis=0), atol=1e-5)
    assert load_transform(fitted.to_bytes()).transform_id == fitted.transform_id
    joined = WhitenSettings(transform="centre+components", remove=1)
    assert fit_transform(Moments.of(x), joined, "raw").affine() is not None


def test_the_example_task_scores_a_file(example: Example, tmp_path: Path):
    example('register("margins")')
    columns = {role: [f"{role} {row}" for row in range(9)] for role in ("anchor", "positive", "negative")}
    task = task_of("margins", save(tmp_path / "rows.parquet", columns))
    score = task.score(random_vectors())
    assert score.value == pytest.approx(task.statistic(score.evidence, np.arange(9)))


def test_the_example_setting_decides_rows_and_keeps_digests_at_its_default(example: Example):
    html = example("strip_tags")
    raw = RawBatch(pa.table({"id": ["a", "b"], "text": ["<p>one<br/>two", "1 < 2"]}), position=0)
    assert html.without_tags(raw).rows["text"].to_pylist() == [" one two", "1 < 2"]
    assert reading_digest(html.HtmlSettings()) == reading_digest(CorpusSettings())
    assert reading_digest(html.HtmlSettings(strip_tags=True)) != reading_digest(CorpusSettings())


def test_the_example_store_creates_a_file_once(example: Example, tmp_path: Path):
    store = example("MemoryStore").MemoryStore(f"memory://{tmp_path.name}")
    assert store.create("a/1.json", b"mine")
    assert not store.create("a/1.json", b"theirs")
    assert [entry.path for entry in store.list()] == ["a/1.json"]


def test_every_name_is_defined_in_its_stated_file():
    text = " ".join((ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    found = re.findall(r"`(\w+)` (?:of|in) `((?:pipeline|tests)/[\w/]+\.py)`", text)
    assert len(found) > 10
    for name, file in found:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def |class )?{name}\b", source, re.MULTILINE), f"{name} in {file}"


def test_every_path_exists():
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"\b(?:pipeline|tests|jobs)/[\w/]+(?:\.\w+)?", text))
    assert len(paths) > 30
    assert [
        path for path in sorted(paths - {"tests/transforms/test_centre.py"}) if not (ROOT / path).exists()
    ] == []
