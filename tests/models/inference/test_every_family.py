"""The vector of a text depends on that text alone, whatever was encoded before, beside it or elsewhere."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from pipeline.models.inference.packed import PackedModel
from pipeline.models.inference.padded import PaddedModel
from tests.models.every_family import FAMILIES, LONGEST, save_family, texts_of, vectors_alone
from tests.models.folders import edit_json, encoder_at

SHORT, LONG = texts_of(1, 3, 5, 14, seed=1), texts_of(130, 190, seed=2)
_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 67,  # not a multiple of the lengths that texts are padded to
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "factor": 4.0,
}
_SCALED = {
    "llama": {"rope_parameters": _DYNAMIC, "max_position_embeddings": 64},
    "nomic_bert": {"rope_parameters": _DYNAMIC, "max_position_embeddings": 64},
    "phi3": {"rope_parameters": _LONG_ROPE, "original_max_position_embeddings": 67},
}
_QUICK = ("bert", "gte", "big_bird", "canine", "funnel", "reformer", "mixtral")
_SLOW = tuple(name for name in FAMILIES if name not in _QUICK)


def check_family(folder: Path) -> None:
    """Check that texts have the vectors that they have alone in a new encoder, and in transformers."""

    def encode(*batches: list[str]) -> np.ndarray:
        encoder = encoder_at(folder, pooling="mean")
        return [encoder.encode(batch) for batch in batches][-1]

    alone = np.concatenate([encode([text]) for text in SHORT + LONG])
    short, long = alone[: len(SHORT)], alone[len(SHORT) :]
    scale = 0 if isinstance(encoder_at(folder)._model, PackedModel) else np.abs(alone).max()
    for found, expected in (
        (encode(SHORT, LONG), long),
        (encode(LONG, SHORT), short),
        (encode(LONG + SHORT), np.concatenate([long, short])),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale)
    longer = [number for number, text in enumerate(SHORT + LONG) if len(text.split()) > 2]
    expected = vectors_alone(folder, [(SHORT + LONG)[number] for number in longer])
    np.testing.assert_allclose(alone[longer], expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", _QUICK)
def test_a_vector_depends_on_its_text_alone(tmp_path: Path, name: str):
    check_family(save_family(name, tmp_path))


def test_threads_that_encode_at_the_same_time_get_the_vectors_of_their_own_texts(tmp_path: Path):
    encoder = encoder_at(save_family("big_bird", tmp_path), pooling="mean")  # changed by short texts
    texts = 6 * [SHORT[0], LONG[0]]
    expected = [encoder.encode([text]) for text in texts]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda text: encoder.encode([text]), texts))
    np.testing.assert_array_equal(found, expected)


def test_a_pass_that_fails_leaves_the_model_as_it_was(tmp_path: Path):
    encoder = encoder_at(save_family("big_bird", tmp_path), pooling="mean")
    expected = encoder.encode(LONG)

    def fail(*_: object) -> None:
        raise RuntimeError("a failed pass")

    failing = encoder._model._model.encoder.layer[-1].register_forward_hook(fail)
    with pytest.raises(Exception, match="a failed pass"):
        encoder.encode(SHORT)
    failing.remove()
    np.testing.assert_array_equal(encoder.encode(LONG), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", _SLOW)
def test_the_vectors_of_every_other_family_depend_on_their_texts_alone(tmp_path: Path, name: str):
    check_family(save_family(name, tmp_path))


@pytest.mark.parametrize("name", _SCALED)
def test_positions_that_are_scaled_by_length_follow_the_length_of_each_text(tmp_path: Path, name: str):
    folder = save_family(name, tmp_path, **_SCALED[name])
    edit_json(folder / "sentence_bert_config.json", max_seq_length=LONGEST)  # more than the positions
    assert isinstance(encoder_at(folder)._model, PaddedModel)
    check_family(folder)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """Another process, which starts without the modules and the state of this one."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield process


def vectors_in(folder: Path) -> np.ndarray:
    return encoder_at(folder, pooling="mean").encode(SHORT + LONG)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_another_process_computes_the_same_vectors(elsewhere: ProcessPoolExecutor, tmp_path: Path, name: str):
    folder = save_family(name, tmp_path)
    theirs = elsewhere.submit(vectors_in, folder)
    encoder = encoder_at(folder, pooling="mean")
    found, expected = encoder.encode(LONG + SHORT), theirs.result()[[4, 5, *range(4)]]
    scale = 0 if isinstance(encoder._model, PackedModel) else np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale)
