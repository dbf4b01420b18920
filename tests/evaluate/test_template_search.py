"""The greedy search tries the templates of the paper, keeps the best of each step, and finds the paper's best
one if scores rise in the paper's order.
"""

import pytest
from pydantic import ValidationError

from pipeline.evaluate.template_search import best_of, search_greedily
from pipeline.settings import TemplateSettings

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
