"""A search scores templates as an evaluation scores candidates, stores each score once, and writes a page."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.flows.evaluate.template_search import search_template
from pipeline.log import Stages
from pipeline.settings import EncoderSettings
from tests.conftest import CommandResult
from tests.flows.evaluate.evaluating import arguments, job, oracle, write_pairs
from tests.models.folder.wordfiles import write_words
from tests.models.folders import save_folder
from tests.models.translation.translators import SENTENCES, save_translator

pytestmark = pytest.mark.usefixtures("cluster")
WORDS = 'evaluate.templates={relations: ["", is], wrappers: ["[X]", "a [X]"], others: ["x [X] [MASK]"]}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("templates")
    save_folder(folder / "encoder", "bert")
    write_pairs(folder / "tasks/sts/STSB-dev.parquet", 30)
    return folder


def stamps(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.rglob("templates/*/*.json")}


def test_each_score_is_that_of_the_encoder_with_the_template(folder: Path):
    result = search_template(job(folder, folder / "encoder", WORDS), Stages())
    scores = {each.template: each.score for step in result.steps for each in step.scores}
    first = {"[X] [MASK].", "[X] is [MASK]."}
    kept = max(first, key=scores.__getitem__)
    assert set(scores) == {*first, kept, f"a {kept}", "x [X] [MASK]"}
    for template, score in scores.items():
        encoder = EncoderSettings(path=str(folder / "encoder"), template=template)
        assert score == pytest.approx(oracle(folder / "tasks/sts/STSB-dev.parquet", encoder), abs=1e-3)
    assert result.best.template == max(scores, key=scores.__getitem__)
    before = stamps(folder)
    assert len(before) == 4
    again = search_template(job(folder, folder / "encoder", WORDS), Stages())
    assert (again.id, again.steps, stamps(folder)) == (result.id, result.steps, before)


def test_the_command_prints_a_table_or_json_and_writes_a_page(
    folder: Path, manta: Callable[..., CommandResult]
):
    code, shown, _ = manta("search-template", *arguments(folder, folder / "encoder"), WORDS)
    assert code == 0
    lines = shown.splitlines()
    assert lines[0] == "Step 1: relation"
    assert lines[1].split() == ["template", "Spearman", "x100", "best"]
    assert sum(line.endswith(" *") for line in lines) == 3
    assert lines[-2].startswith("best    ")
    page = Path(lines[-1].removeprefix("report").strip()).read_text()
    assert "Step 2: wrapper" in page
    ended = manta("search-template", "--json", *arguments(folder, folder / "encoder"), WORDS)
    answer = json.loads(ended.out)
    assert answer["template"] in lines[-2]
    assert answer["template"] in page
    assert [step["name"] for step in answer["steps"]] == ["relation", "wrapper", "others"]


def test_templates_that_a_t5_generates_are_scored_and_generated_only_once(folder: Path, tmp_path: Path):
    t5 = save_translator(tmp_path / "t5", "t5")
    definitions = pa.table({"word": ["guitar", "park"], "definition": [SENTENCES[0], SENTENCES[5]]})
    pq.write_table(definitions, tmp_path / "words.parquet")
    generator = (
        f"{{path: {t5}, definitions: {tmp_path}/words.parquet, candidates: 4, beams: 4, max_tokens: 2}}"
    )
    own = [WORDS, f"evaluate.templates.generator={generator}", f"release.root={tmp_path / 'root'}"]
    result = search_template(job(folder, folder / "encoder", *own), Stages())
    *_, generated = result.steps
    assert generated.name == "generated"
    assert 1 <= len(generated.scores) <= 4
    for each in generated.scores:
        encoder = EncoderSettings(path=str(folder / "encoder"), template=each.template)
        assert each.score == pytest.approx(oracle(folder / "tasks/sts/STSB-dev.parquet", encoder), abs=1e-3)
    before = stamps(tmp_path / "root")
    assert sum(file.parent.name == "generated" for file in (tmp_path / "root").rglob("*.json")) == 1
    again = search_template(job(folder, folder / "encoder", *own), Stages())
    assert (again.steps, stamps(tmp_path / "root")) == (result.steps, before)


def test_without_pairs_nothing_is_scored(folder: Path, tmp_path: Path):
    settings = job(folder, folder / "encoder", "evaluate.tasks=null", f"release.root={tmp_path}")
    with pytest.raises(DataError, match=r"search-template: expected pairs with human scores"):
        search_template(settings, Stages())
    assert not list(tmp_path.rglob("*.json"))


def test_an_encoder_without_a_mask_token_is_refused(
    folder: Path, tmp_path: Path, manta: Callable[..., CommandResult]
):
    bare = save_folder(tmp_path / "bare", "bert")
    vocabulary, settings = bare / "tokenizer.json", bare / "tokenizer_config.json"
    vocabulary.write_text(vocabulary.read_text().replace("[MASK]", "[NONE]"))
    # a token that is named there would be added to the vocabulary
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"mask_token": None}))
    words = write_words(tmp_path / "words.txt", ["a", "b"], np.eye(2, dtype=np.float32), "word2vec")
    for encoder in (bare, words):
        ended = manta("search-template", *arguments(folder, encoder), WORDS)
        assert ended.code == 4
        assert "mask token" in ended.err
        assert "set encoder.path to a masked language model" in ended.err
        assert "score:" not in ended.err, "no worker has started"


def test_results_are_not_written_among_the_files_of_a_corpus(
    folder: Path, manta: Callable[..., CommandResult]
):
    for command in ("evaluate", "search-template"):
        given = [*arguments(folder, folder / "encoder"), WORDS, f"corpus.uri={folder}"]
        code, _, said = manta(command, *given, f"evaluate.root={folder}/results")
        assert (code, "evaluate.root: " in said, "not below corpus.uri" in said) == (2, True, True)
    assert not (folder / "results").exists()
