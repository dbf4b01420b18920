"""Vectors equal those of reference implementations, and do not depend on the other texts of a batch."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from pipeline.errors import ConfigError, ModelError
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folders import FAMILIES, LONG, TEXTS, edit_json, hidden_states, save_folder, table_rows
from tests.models.poolings import FORMULAS, OF_TRANSFORMERS, TABLE


def settings(folder, **changes) -> EncoderSettings:
    return EncoderSettings(path=str(folder), **changes)


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Return texts of 1 to 60 words, some of them equal."""
    rng = np.random.default_rng(seed)
    vocabulary = [*LONG.split()[:16], "ladder", "window", "snow", "mill"]
    return [" ".join(rng.choice(vocabulary, rng.integers(1, 61))) for _ in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_equal_those_of_the_model_run_on_each_text_alone(folders, family):
    encoder = load_encoder(settings(folders[family], pooling="mean"), EncodeSettings(max_tokens=256))
    texts = [*TEXTS, LONG]
    assert (encoder.folder.family == "other") == (family == "electra")
    for text, vector in zip(texts, encoder.encode(texts), strict=True):
        np.testing.assert_allclose(vector, hidden_states(folders[family], text)[-1].mean(0), atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "electra"])
@pytest.mark.parametrize("pooling", [*OF_TRANSFORMERS, "mean+table", "mean+max"])
def test_every_pooling_equals_its_formula_on_the_states_of_each_text_alone(folders, family, pooling):
    encoder = load_encoder(settings(folders[family], pooling=pooling), EncodeSettings(max_tokens=128))
    for text, vector in zip(TEXTS, encoder.encode(TEXTS), strict=True):
        states = dict(enumerate(state.numpy() for state in hidden_states(folders[family], text)))
        states |= {-1: states[3], -2: states[2], TABLE: table_rows(folders[family], text)}
        at = np.arange(len(states[0]))
        expected = np.concatenate([FORMULAS[name](states, at) for name in pooling.split("+")])
        terms = len(at) if pooling == "sum" else 1  # rounding grows with the sum
        np.testing.assert_allclose(vector, expected, atol=1e-5 * terms)


def test_cls_mlp_applies_the_trained_layer_to_the_first_token(folders):
    encoder = load_encoder(settings(folders["bert"], pooling="cls_mlp"), EncodeSettings())
    model = AutoModel.from_pretrained(folders["bert"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders["bert"])
    with torch.no_grad():
        expected = model(**tokenizer(TEXTS[0], return_tensors="pt")).pooler_output[0]
    np.testing.assert_allclose(encoder.encode([TEXTS[0]])[0], expected, atol=1e-5)
    with pytest.raises(ModelError, match="cls_mlp"):
        load_encoder(settings(folders["distilbert"], pooling="cls_mlp"), EncodeSettings())


def test_the_packaged_minilm_equals_sentence_transformers(minilm):
    texts = [*TEXTS, LONG, *random_texts(60)]
    reference = SentenceTransformer(str(minilm.folder.path), device="cpu")
    np.testing.assert_allclose(minilm.encode(texts), reference.encode(texts, batch_size=16), atol=1e-5)
    assert minilm.dim == 384
    assert minilm.max_length == 256


@pytest.mark.parametrize("family", [*FAMILIES, "minilm"])
def test_the_bits_of_a_text_do_not_depend_on_its_batch(folders, minilm, family):
    encoder = (
        minilm
        if family == "minilm"
        else load_encoder(
            settings(folders[family], pooling="mean+max", normalize=True), EncodeSettings(max_tokens=256)
        )
    )
    texts = random_texts(80)
    together = encoder.encode(texts)
    order = np.random.default_rng(1).permutation(len(texts))
    np.testing.assert_array_equal(encoder.encode([texts[i] for i in order]), together[order])
    np.testing.assert_array_equal(
        np.concatenate([encoder.encode(texts[:13]), encoder.encode(texts[13:])]), together
    )
    np.testing.assert_array_equal(
        np.concatenate([encoder.encode([text]) for text in texts[:5]]), together[:5]
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_neither_on_the_number_of_threads_nor_on_the_batch(dtype):
    texts = random_texts(60)
    encoder = load_encoder(EncoderSettings(), EncodeSettings(dtype=dtype, threads=1))
    together = encoder.encode(texts)
    for threads in (2, 3):
        several = load_encoder(EncoderSettings(), EncodeSettings(dtype=dtype, threads=threads))
        np.testing.assert_array_equal(several.encode(texts[::-1]), together[::-1])
    np.testing.assert_array_equal(np.concatenate([encoder.encode([x]) for x in texts[:9]]), together[:9])


def test_a_stream_returns_the_rows_of_each_batch_in_order(minilm):
    texts = random_texts(90)
    batches = [pa.array(texts[:7]), [], texts[7:60], pa.chunked_array([texts[60:70], texts[70:]])]
    encoded = list(minilm.encode_stream(iter(batches)))
    assert [len(part.vectors) for part in encoded] == [7, 0, 53, 30]
    np.testing.assert_array_equal(np.concatenate([part.vectors for part in encoded]), minilm.encode(texts))
    lengths = minilm.count_tokens(texts).lengths
    np.testing.assert_array_equal(np.concatenate([part.counts.lengths for part in encoded]), lengths)
    assert not any(part.bad.any() or part.counts.truncated.any() for part in encoded)


def test_a_stream_reports_rows_during_a_window(folders):
    encoder = load_encoder(settings(folders["bert"]), EncodeSettings(max_tokens=128))
    texts, reported = random_texts(120), list[int]()
    first, *_ = encoder.encode_stream([texts[:60], texts[60:90], texts[90:]], reported.append)
    assert len(first.vectors) == 60
    assert reported == sorted(reported)
    assert reported[-1] == 120, "one window has all rows"
    assert len(set(reported)) > 10, "a window has many buffers"


def test_errors_of_the_reader_are_raised_and_a_caller_may_stop_early(minilm):
    def broken():
        yield ["one"] * 3_000
        raise ValueError("the disk is gone")

    with pytest.raises(ValueError, match="the disk is gone"):
        list(minilm.encode_stream(broken()))
    stream = minilm.encode_stream([["one"] * 3_000, ["two"] * 5_000, ["three"] * 9_000])
    assert len(next(stream).vectors) == 3_000
    stream.close()


def test_tokens_padding_and_repeated_texts_are_counted(folders):
    encoder = load_encoder(settings(folders["bert"]), EncodeSettings(max_tokens=128))
    encoder.encode(["Two dogs run.", "x", "Two dogs run."])
    tokens = encoder.count_tokens(["Two dogs run.", "x"]).lengths.sum()
    assert (encoder.counters.texts, encoder.counters.repeats) == (3, 1)
    assert (encoder.counters.tokens, encoder.counters.padding) == (tokens, 128 - tokens)


def test_truncation_is_counted_and_equals_the_reference(folders):
    encoder = load_encoder(settings(folders["roberta"], pooling="mean", max_length=20), EncodeSettings())
    (part,) = encoder.encode_stream([["short", LONG]])
    assert part.counts.truncated.tolist() == [False, True]
    assert part.counts.lengths[1] == 20
    np.testing.assert_allclose(
        part.vectors[1], hidden_states(folders["roberta"], LONG, max_length=20)[-1].mean(0), atol=1e-5
    )


def test_a_vector_that_is_not_finite_is_marked_as_bad(folders):
    encoder = load_encoder(settings(folders["bert"]), EncodeSettings())
    words_table = encoder._model._tables[0]
    words_table[encoder._tokenizer(["x"]).ids[1]] = torch.nan
    (part,) = encoder.encode_stream([["Two dogs run.", "x"]])
    assert part.bad.tolist() == [False, True]
    with pytest.raises(ModelError, match="finite vectors, found NaN or infinity for 2 of 3 texts"):
        encoder.encode(["Two dogs run.", "x", "x"])
    with pytest.raises(ModelError, match="for 1 of 1 texts"):
        encoder.encode("x")


def test_warnings_of_a_folder_are_announced_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pipeline.models.folder.folder._announced", set())
    folder = save_folder(tmp_path / "dot", "bert")
    edit_json(folder / "config_sentence_transformers.json", similarity_fn_name="dot")
    for _ in range(2):
        load_encoder(str(folder))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 1
    assert f"{folder}: similarity_fn_name is dot" in lines[0]


def test_no_texts_give_an_empty_matrix(minilm):
    assert minilm.encode([]).shape == (0, 384)
    assert list(minilm.encode_stream([])) == []


def test_queries_use_the_query_prompt(folders):
    encoder = load_encoder(
        settings(folders["bert"], prompt="a man ", query_prompt="two dogs "), EncodeSettings()
    )
    plain = load_encoder(settings(folders["bert"]), EncodeSettings())
    np.testing.assert_allclose(encoder.encode(["run"]), plain.encode(["a man run"]), atol=1e-6)
    np.testing.assert_allclose(encoder.encode(["run"], query=True), plain.encode(["two dogs run"]), atol=1e-5)
    assert encoder.space_id != plain.space_id


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_on_a_cpu_is_close(minilm, dtype):
    half = load_encoder(EncoderSettings(), EncodeSettings(dtype=dtype))
    texts = random_texts(20)
    assert (half.encode(texts) * minilm.encode(texts)).sum(1).min() > 0.999
    assert half.space_id == minilm.space_id
    assert half.numerics_id != minilm.numerics_id


def test_bfloat16_rounds_products_alone_not_sums(minilm):
    """With sums in bfloat16, the largest error of these texts is above 5e-5."""
    half = load_encoder(EncoderSettings(), EncodeSettings(dtype="bfloat16"))
    texts = random_texts(60)
    assert 1 - (half.encode(texts) * minilm.encode(texts)).sum(1).min() < 3e-5


def test_a_buffer_shorter_than_the_longest_text_is_refused(folders):
    with pytest.raises(ConfigError, match=r"encode\.max_tokens.*at least the encoder's max_length of 256"):
        load_encoder(EncoderSettings(), EncodeSettings(max_tokens=128))
    assert load_encoder(settings(folders["bert"]), EncodeSettings()).max_tokens == 1_024


def test_running_out_of_device_memory_halves_the_buffer(folders, monkeypatch):
    encoder = load_encoder(settings(folders["bert"]), EncodeSettings(max_tokens=256))
    texts, numerics = random_texts(20), encoder.numerics_id
    before, embedding = encoder.encode(texts), F.embedding

    def scarce(ids, table):
        if len(ids) > 64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return embedding(ids, table)

    monkeypatch.setattr(F, "embedding", scarce)
    np.testing.assert_allclose(encoder.encode(texts), before, atol=1e-5)
    assert encoder.max_tokens == 64
    assert encoder.numerics_id != numerics
    encoder.arithmetic = replace(encoder.arithmetic, max_tokens=256)
    encoder.max_length = 128
    with pytest.raises(ModelError, match="memory for one text"):
        encoder.encode(texts)


def test_a_string_is_encoded_in_a_small_buffer(folders):
    encoder = load_encoder(settings(folders["bert"]), EncodeSettings())
    vector = encoder.encode("Two dogs run.")
    assert encoder.counters.padding < 16
    np.testing.assert_allclose(vector, encoder.encode(["Two dogs run."])[0], atol=1e-5)
    assert encoder.counters.padding > 1_000
