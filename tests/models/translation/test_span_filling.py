"""T5 fills the spans around words: the search finds the most probable spans for all definitions together, and
makes templates of them.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, T5ForConditionalGeneration

from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.models.translation.definitions import Definition
from pipeline.models.translation.span_filling import Beam, SpanFilling
from tests.models.translation.translators import SENTENCES, SENTINELS, save_translator

DEFINITIONS = [Definition("guitar", SENTENCES[0]), Definition("park", SENTENCES[5])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_translator(tmp_path_factory.mktemp("t5"), "t5")


@pytest.fixture(scope="module")
def filling(folder: Path) -> SpanFilling:
    return SpanFilling(str(folder), DEFINITIONS, Device("cpu"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder))


@torch.inference_mode()
def log_probability(folder: Path, tokenizer: Any, targets: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return (n,) mean over the definitions of log p(targets | input), by transformers with labels alone."""
    model = T5ForConditionalGeneration.from_pretrained(str(folder)).eval()
    found = torch.zeros(len(targets))
    for each in DEFINITIONS:
        text = f"{SENTINELS[0]} {each.word} {SENTINELS[1]} {each.definition}"
        source = tokenizer(text, return_tensors="pt").input_ids.expand(len(targets), -1)
        labels = torch.tensor(targets)
        logits = model(input_ids=source, labels=labels).logits
        chosen = logits.log_softmax(-1).gather(2, labels[..., None]).squeeze(2)
        found += chosen[:, 1:].sum(1)  # the first sentinel is given
    return found / len(DEFINITIONS)


def all_spans(tokenizer: Any, length: int) -> Iterator[list[int]]:
    """Yield the targets whose two spans have `length` tokens together, 0 or 1."""
    first, second, end = tokenizer.convert_tokens_to_ids(list(SENTINELS))
    if length == 0:
        yield [first, second, end]
        return
    for token in set(range(len(tokenizer))) - set(tokenizer.all_special_ids):
        yield [first, token, second, end]
        yield [first, second, token, end]


def test_the_search_finds_what_trying_all_spans_finds(folder: Path, filling: SpanFilling, tokenizer: Any):
    found = filling.search(count=20, beams=1_000, max_tokens=1)
    tried: dict[tuple[int, ...], float] = {}
    for length in (0, 1):
        targets = list(all_spans(tokenizer, length))
        scores = log_probability(folder, tokenizer, targets)
        tried |= {tuple(target[1:]): score for target, score in zip(targets, scores.tolist(), strict=True)}
    best = sorted(tried.values(), reverse=True)[:20]
    assert len(found) == 20
    assert [beam.score for beam in found] == pytest.approx(best, rel=1e-4)
    assert [tried[beam.tokens] for beam in found] == pytest.approx(best, rel=1e-4)


def test_longer_spans_have_the_probability_that_the_model_gives_them(
    folder: Path, filling: SpanFilling, tokenizer: Any
):
    first = tokenizer.convert_tokens_to_ids(SENTINELS[0])
    found = [beam for beam in filling.search(count=60, beams=30, max_tokens=5) if len(beam.tokens) == 7]
    assert found
    scores = log_probability(folder, tokenizer, [[first, *beam.tokens] for beam in found])
    assert [beam.score for beam in found] == pytest.approx(scores.tolist(), rel=1e-4)


def test_found_spans_are_complete_distinct_and_sorted(filling: SpanFilling, tokenizer: Any):
    found = filling.search(count=8, beams=10, max_tokens=4)
    second, end = tokenizer.convert_tokens_to_ids(list(SENTINELS[1:]))
    assert len({beam.tokens for beam in found}) == len(found) == 8
    assert all(former.score >= latter.score for former, latter in pairwise(found))
    for beam in found:
        assert len(beam.tokens) <= 4 + 2
        assert beam.tokens[-1] == end
        assert (beam.tokens.count(second), beam.tokens.count(end)) == (1, 1)
        assert not set(beam.tokens[:-1]) - {second} & set(tokenizer.all_special_ids)


def test_each_template_has_one_place_for_the_text_and_one_for_the_mask(filling: SpanFilling):
    templates = filling.templates(count=8, beams=30, max_tokens=3)
    assert len(set(templates)) == len(templates)
    assert 5 <= len(templates) <= 8, "equal ones are left out"
    for template in templates:
        assert (template.count("[X]"), template.count("[MASK]")) == (1, 1)
        assert template.index("[MASK]") < template.index("[X]")
        assert template == " ".join(template.split())
        assert "extra_id" not in template


@pytest.mark.parametrize(
    ("before", "after", "template"),
    [
        (["▁a", "▁man"], ["▁in"], "a man [MASK] in [X]"),
        (["▁people"], ["e", "▁the"], "people [MASK]e the [X]"),
        ([], [], "[MASK] [X]"),
        ([], ["▁plays"], "[MASK] plays [X]"),
    ],
)
def test_a_template_has_blanks_where_the_tokens_have_them(
    filling: SpanFilling, tokenizer: Any, before: list[str], after: list[str], template: str
):
    tokens = tokenizer.convert_tokens_to_ids([*before, SENTINELS[1], *after, SENTINELS[2]])
    assert tokenizer.unk_token_id not in tokens
    assert filling._template(Beam(tuple(tokens))) == template


def test_a_model_without_sentinels_is_refused(tmp_path: Path):
    marian = save_translator(tmp_path, "marian")
    with pytest.raises(ModelError, match="expected a model that fills spans, with the tokens <extra_id_0>"):
        SpanFilling(str(marian), DEFINITIONS, Device("cpu"))
