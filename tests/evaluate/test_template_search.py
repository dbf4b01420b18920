"""The greedy search tries the templates of the paper, keeps the best of each step, and finds the paper's best
one if scores rise in the paper's order.
"""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from pipeline.errors import DataError
from pipeline.evaluate.template_search import best_of, read_definitions, search_greedily
from pipeline.models.translation.definitions import Definition
from pipeline.settings import GeneratorSettings, TemplateSettings

# The first and the last score are published (Jiang et al. 2022: BERT-base on STS-B dev); those between rise.
SCORES = {
    "[X] [MASK].": 39.34,
    "[X] is [MASK].": 45.0,
    "[X] mean [MASK].": 50.0,
    "[X] means [MASK].": 55.0,
    "This [X] means [MASK].": 60.0,
    "This sentence of [X] means [MASK].": 65.0,
    'This sentence of "[X]" means [MASK].': 70.0,
    'This sentence : "[X]" means [MASK].': 73.44,
}


def search(scores: dict[str, float], **settings):
    tried = []

    def score(step, templates):
        tried.append((step, list(templates)))
        return [scores[template] for template in templates]

    return search_greedily(TemplateSettings(**settings), score), tried


def test_the_defaults_find_the_papers_best_template_among_the_papers_templates():
    steps, tried = search(SCORES)
    assert [name for name, _ in tried] == ["relation", "wrapper"]
    assert tried[0][1] == list(SCORES)[:4]
    assert tried[1][1] == list(SCORES)[3:]
    assert best_of(steps).template == 'This sentence : "[X]" means [MASK].'
    assert best_of(steps).score == 73.44


def test_wrappers_are_tried_with_the_best_relation_only():
    scores = {"<[X] [MASK]!": 1.0, "<[X] is [MASK]!": 3.0, "[X]> is [MASK]!": 2.0, "[X]? [MASK].": 2.5}
    steps, tried = search(
        scores, relations=["", "is"], wrappers=["<[X]", "[X]>"], ending="!", others=["[X]? [MASK]."]
    )
    assert [templates for _, templates in tried] == [
        ["<[X] [MASK]!", "<[X] is [MASK]!"],
        ["<[X] is [MASK]!", "[X]> is [MASK]!"],
        ["[X]? [MASK]."],
    ]
    assert [step.best.template for step in steps] == ["<[X] is [MASK]!", "<[X] is [MASK]!", "[X]? [MASK]."]
    assert best_of(steps).score == 3.0


def test_generated_templates_are_scored_after_all_others():
    scores = {"[X] is [MASK].": 1.0, "[MASK] [X]": 2.0, "Also called [MASK]. [X]": 3.0}
    tried = []

    def score(step, templates):
        tried.append((step, list(templates)))
        return [scores[template] for template in templates]

    settings = TemplateSettings(relations=("is",), wrappers=("[X]",), others=("[MASK] [X]",))
    steps = search_greedily(settings, score, ["Also called [MASK]. [X]", "[MASK] [X]"])
    assert tried[-1] == ("generated", ["Also called [MASK]. [X]", "[MASK] [X]"])
    assert best_of(steps).template == "Also called [MASK]. [X]"


def write_definitions(file, words, definitions):
    pq.write_table(pa.table({"word": words, "definition": definitions}), file)
    return GeneratorSettings(path="t5", definitions=str(file), examples=2, seed=1)


def test_definitions_are_drawn_by_the_seed_and_incomplete_ones_left_out(tmp_path):
    words = ["a", None, "b", " ", "c", "d"]
    settings = write_definitions(tmp_path / "words.parquet", words, ["A", "B", "C", "D", None, " E "])
    drawn = read_definitions(settings)
    usable = [Definition("a", "A"), Definition("b", "C"), Definition("d", "E")]
    assert len(drawn) == 2
    assert [each for each in usable if each in drawn] == drawn, "in the order of the file"
    assert read_definitions(settings) == drawn
    assert len({tuple(read_definitions(settings.model_copy(update={"seed": seed}))) for seed in range(9)}) > 1
    assert read_definitions(settings.model_copy(update={"examples": 9})) == usable


def test_unusable_definitions_are_refused(tmp_path):
    with pytest.raises(DataError, match="expected words with definitions, found 1 rows, none with both"):
        read_definitions(write_definitions(tmp_path / "words.parquet", [""], ["A"]))
    pq.write_table(pa.table({"word": ["a"]}), tmp_path / "half.parquet")
    settings = GeneratorSettings(path="t5", definitions=str(tmp_path / "half.parquet"))
    with pytest.raises(DataError, match="expected the columns word, definition, found word"):
        read_definitions(settings)


def test_of_equal_scores_the_first_wins_and_repeated_templates_are_scored_once():
    scores = {"[X] is [MASK].": 1.0, "[X] means [MASK].": 1.0}
    steps, tried = search(scores, relations=["is", "is", "means"], wrappers=["[X]", "[X]"])
    assert tried[0][1] == ["[X] is [MASK].", "[X] means [MASK]."]
    assert best_of(steps).template == "[X] is [MASK]."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"relations": ["[MASK]"]}, r"relations to have \[X\] never and \[MASK\] never, not '\[MASK\]'"),
        ({"wrappers": ["This"]}, r"wrappers to have \[X\] once and \[MASK\] never, not 'This'"),
        ({"others": ["[X] [X] [MASK]"]}, r"others to have \[X\] once and \[MASK\] once"),
        ({"ending": "[X]"}, "ending to have"),
        ({"wrappers": []}, "at least 1 item"),
    ],
)
def test_a_template_has_one_text_and_one_mask(changes, words):
    with pytest.raises(ValidationError, match=words):
        TemplateSettings(**changes)
