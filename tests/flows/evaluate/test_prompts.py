"""Queries, and the texts of a kind of task, get the prompts that the encoder's folder has for them."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.evaluate.candidates import resolve_candidates
from pipeline.flows.evaluate.evaluate import Evaluation, evaluate
from pipeline.log import Stages
from pipeline.settings import EncoderSettings
from pipeline.store.files.open_store import open_store
from tests.flows.conftest import sentences
from tests.flows.evaluate.evaluating import job, oracle, write_pairs
from tests.models.folders import edit_json, encoder_at, save_folder

QUERIES, TARGETS = sentences(30, seed=1), sentences(30, seed=2)
PROMPTS = {"query": "a girl reads: ", "document": "two dogs ", "STS": "the cat's café 1234567 "}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder whose folder has prompts for queries, documents and STS."""
    folder = save_folder(tmp_path_factory.mktemp("encoders") / "prompted", "bert")
    edit_json(folder / "config_sentence_transformers.json", prompts=PROMPTS)
    return folder


def evaluated(folder: Path, encoder: Path, *settings: str) -> Evaluation:
    write_pairs(folder / "tasks/sts/STSB-dev.parquet", 40, 0, sentences(60))
    pq.write_table(pa.table({"query": QUERIES, "positive": TARGETS}), folder / "search.parquet")
    own = f"evaluate.own=[{{kind: retrieval, uri: {folder}/search.parquet}}]"
    return evaluate(job(folder, encoder, "evaluate.names=[STSB-dev]", own, *settings), Stages())


def gain(queries: np.ndarray, targets: np.ndarray) -> float:
    """nDCG@10 x100 by cosine; the relevant target of a query has its number."""
    left, right = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, targets))
    ranked = np.argsort(-(left @ right.T), axis=1)
    ranks = 1 + (ranked == np.arange(len(ranked))[:, None]).argmax(axis=1)
    return 100 * float(np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0).mean())


def test_scores_are_those_of_the_prompts_for_queries_and_tasks(tmp_path: Path, prompted: Path):
    found = evaluated(tmp_path, prompted)
    scores = {each.task.kind: each.results[0].result.value for each in found.measured}
    settings = EncoderSettings(path=str(prompted))
    sts = oracle(
        tmp_path / "tasks/sts/STSB-dev.parquet", settings.model_copy(update={"prompt": PROMPTS["STS"]})
    )
    encoder = encoder_at(prompted)
    assert scores["sts"] == pytest.approx(sts, abs=1e-3)
    assert scores["retrieval"] == pytest.approx(
        gain(encoder.encode(QUERIES, query=True), encoder.encode(TARGETS)), abs=1e-3
    )
    usual, queries, sts_prompt = (PROMPTS[name] for name in ("document", "query", "STS"))
    assert found.candidates[0].prompts == {
        "texts": usual,
        "queries of retrieval": queries,
        "texts of sts": sts_prompt,
    }


def test_a_prompt_in_the_settings_is_that_of_all_texts(tmp_path: Path, prompted: Path):
    found = evaluated(tmp_path, prompted, "encoder.prompt='my '")
    scores = {each.task.kind: each.results[0].result.value for each in found.measured}
    encoder = encoder_at(prompted, prompt="my ")
    assert scores["retrieval"] == pytest.approx(
        gain(encoder.encode(QUERIES), encoder.encode(TARGETS)), abs=1e-3
    )
    assert found.candidates[0].prompts == {"texts": "my "}


def test_an_encoder_without_prompts_has_one_space(tmp_path: Path):
    chosen = job(tmp_path, save_folder(tmp_path / "bert", "bert"))
    (candidate,) = resolve_candidates(chosen, open_store(str(tmp_path)))
    assert candidate.prompts == {"texts": ""}
    assert candidate.prompted_spaces == []


def test_candidates_that_differ_in_the_prompt_of_queries_have_their_own_scores(tmp_path: Path):
    encoder = save_folder(tmp_path / "bert", "bert")
    prompts = ("", *PROMPTS.values())
    candidates = [{"encoder": {"path": str(encoder), "query_prompt": prompt}} for prompt in prompts]
    found = evaluated(tmp_path, encoder, f"evaluate.candidates={json.dumps(candidates)}")
    (results,) = (each.results for each in found.measured if each.task.kind == "retrieval")
    encoders = [encoder_at(encoder, query_prompt=prompt) for prompt in prompts]
    expected = [gain(each.encode(QUERIES, query=True), each.encode(TARGETS)) for each in encoders]
    # the vectors are so close that rounding may change a rank, but not the order of the prompts
    assert [each.result.value for each in results] == pytest.approx(expected, abs=0.3)
    assert min(abs(one - other) for one, other in combinations(expected, 2)) > 0.6
