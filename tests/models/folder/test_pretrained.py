"""A folder gives the vectors of sentence-transformers, or an error with a remedy.

Its code is never run, and nothing is asked on the terminal.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from tests.models.folders import TEXTS, save_folder, word_piece

_SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}


def edit(file: Path, **changes: Any) -> None:
    values = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(
        json.dumps({name: value for name, value in (values | changes).items() if value is not ...})
    )


def save(folder: Path, model: Any, **tokenizer: Any) -> Path:
    """A Hugging Face folder of a random model with the tokenizer of the tests."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.eval().save_pretrained(folder)
    names = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
    }
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_piece(), model_max_length=64, **names, **tokenizer
    ).save_pretrained(folder)
    return folder


def reference(folder: Path, pooling: str = "mean", **prompts: Any) -> SentenceTransformer:
    """The folder in sentence-transformers, saved as it saves encoders beside it."""
    transformer = Transformer(str(folder))
    modules = [
        transformer,
        Pooling(transformer.get_word_embedding_dimension(), pooling_mode=pooling),
        Normalize(),
    ]
    return SentenceTransformer(modules=modules, device="cpu", **prompts)


def loaded(folder: Path, **changes: Any) -> Encoder:
    return load_encoder(EncoderSettings(path=str(folder), **changes), EncodeSettings())


def electra(folder: Path) -> Path:
    return save_folder(folder, "electra")


@pytest.mark.parametrize(
    "load",
    [
        loaded,
        lambda folder: load_trainable(open_folder(EncoderSettings(path=str(folder)))),
    ],
    ids=["encoder", "start of a training"],
)
def test_missing_weights_are_named_and_not_drawn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[[Path], Any],
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    folder = electra(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name.replace("layer.1.", "layer.9."): tensor for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(
        ModelError,
        match=(
            r"with all its weights, found 16 weights missing: encoder\.layer\.1\.attention.* \.\.\.; fetch "
            r"its files again"
        ),
    ) as caught:
        load(folder)
    assert caught.value.exit_code == 4
    assert "LOAD REPORT" not in caplog.text


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a question is asked on the terminal."""

    def asked(*_: object) -> str:
        raise AssertionError("a question on the terminal")

    monkeypatch.setattr("builtins.input", asked)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        (
            "bert",
            {"auto_map": {"AutoModel": "modeling.JinaBert"}},
            "names the code modeling.JinaBert; use an encoder whose architecture is part of transformers",
        ),
        (
            "electra",
            {"auto_map": {"AutoModel": "someone/code--modeling.NomicBertModel"}},
            "transformers' own port of it (model_type nomic_bert, no auto_map)",
        ),
        (
            "electra",
            {"model_type": "new", "auto_map": {"AutoModel": "a/b--modeling.NewModel"}},
            "transformers' own port of it (model_type gte, no auto_map)",
        ),
        (
            "electra",
            {"model_type": "never_heard_of"},
            "found model_type 'never_heard_of'; use an encoder whose architecture is part of transformers",
        ),
        (
            "bert",
            {"attn_implementation": "kernels-community/flash"},
            "found attn_implementation 'kernels-community/flash', a repository of code; remove that line",
        ),
    ],
)
def test_code_of_a_folder_is_refused_with_the_name_of_the_port(
    tmp_path: Path, family: str, changes: dict[str, Any], words: str
):
    folder = save_folder(tmp_path, family)
    edit(folder / "config.json", **changes)
    (folder / "modeling.py").write_text("raise SystemExit('code of the folder ran')")
    with pytest.raises(ModelError) as caught:
        loaded(folder)
    assert words in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("kind", ["T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel"])
def test_an_encoder_that_was_saved_without_its_decoder_is_one(tmp_path: Path, kind: str):
    config = getattr(transformers, kind.replace("EncoderModel", "Config"))(
        vocab_size=300, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4
    )
    folder = save(tmp_path, getattr(transformers, kind)(config))
    for is_encoder_decoder in (False, True):  # as today's transformers says it, and as older versions did
        edit(folder / "config.json", is_encoder_decoder=is_encoder_decoder)
        np.testing.assert_allclose(
            loaded(folder, normalize=True).encode(TEXTS), reference(folder).encode(list(TEXTS)), atol=1e-5
        )


def tokenizer_folder(folder: Path, kind: str, processed: bool, **config: Any) -> Path:
    """Files of a tokenizer of that kind, whose tokenizer.json puts special tokens around a text or not."""
    pieces = {
        "metaspace": pre_tokenizers.Metaspace(),
        "byte_level": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "words": pre_tokenizers.BertPreTokenizer(),
    }
    made = Tokenizer(models.Unigram() if kind == "unigram" else models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pieces["metaspace" if kind == "unigram" else kind]
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    trainer = (
        trainers.UnigramTrainer(unk_token="<unk>", special_tokens=special)
        if kind == "unigram"
        else trainers.BpeTrainer(special_tokens=special)
    )
    made.train_from_iterator([*TEXTS, "the quick brown fox's 12 dogs"], trainer)
    if processed:
        ends = [(name, made.token_to_id(name)) for name in ("<s>", "</s>")]
        made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names | config))
    return folder


@pytest.mark.parametrize("max_length", [9, 64])
@pytest.mark.parametrize(
    "added",
    [
        {},
        {"add_eos_token": True},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": False, "add_eos_token": False},
    ],
)
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("kind", ["metaspace", "byte_level", "words", "unigram"])
def test_token_ids_are_those_of_the_folders_own_tokenizer(
    tmp_path: Path, kind: str, processed: bool, added: dict[str, bool], max_length: int
):
    folder = tokenizer_folder(tmp_path / "tokenizer", kind, processed, **added)
    own = transformers.AutoTokenizer.from_pretrained(str(folder))
    if not processed:  # transformers 5 forgets what tokenizer_config.json adds; told again, it does it
        own.add_bos_token, own.add_eos_token = (
            added.get("add_bos_token", False),
            added.get("add_eos_token", False),
        )
        own.update_post_processor()
    tokens = load_tokenizer(folder, max_length)(TEXTS)
    ids = [
        tokens.ids[start:end].tolist()
        for start, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)
    ]
    assert ids == [own(text, truncation=True, max_length=max_length)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize("is_causal", [..., True, False])
@pytest.mark.parametrize("pooling", ["lasttoken", "mean"])
def test_attention_looks_ahead_if_the_folder_says_so(tmp_path: Path, is_causal: Any, pooling: str):
    folder = save(
        tmp_path / "hf",
        transformers.Qwen2Model(transformers.Qwen2Config(**_SIZES, max_position_embeddings=64)),
    )
    edit(folder / "config.json", is_causal=is_causal)
    model = reference(folder, pooling)
    model.save_pretrained(str(tmp_path / "st"))
    vectors = loaded(tmp_path / "st").encode(TEXTS)
    np.testing.assert_allclose(vectors, model.encode(list(TEXTS)), atol=1e-5)
    edit(tmp_path / "st/config.json", is_causal=is_causal is False)
    assert np.abs(loaded(tmp_path / "st").encode(TEXTS) - vectors).max() > 1e-3, (
        "the other way gives other vectors"
    )


def test_what_a_forward_pass_computes_for_nobody_is_bounded_however_long_a_context_is(tmp_path: Path):
    folder = save(
        tmp_path, transformers.Qwen2Model(transformers.Qwen2Config(**_SIZES, max_position_embeddings=32_768))
    )
    encoder = loaded(folder, max_length=32_768)
    encoder.encode([" ".join(["dogs"] * (280 + number % 20)) + f" {number}" for number in range(100)])
    assert encoder.counters.tokens > 25_000
    assert encoder.counters.filling < 0.25 * encoder.counters.tokens
    assert encoder.encode([" ".join(["run"] * 3_000)]).any(), "one text may be longer than a buffer"


def test_prompts_for_queries_and_documents_go_before_them(folders, tmp_path: Path):
    model = reference(folders["bert"], prompts={"query": "two dogs: ", "document": "the text: "})
    model.save_pretrained(str(tmp_path))
    encoder, texts = loaded(tmp_path), list(TEXTS)
    np.testing.assert_allclose(encoder.encode(texts), model.encode_document(texts), atol=1e-5)
    np.testing.assert_allclose(encoder.encode(texts, query=True), model.encode_query(texts), atol=1e-5)


def test_vectors_are_cut_to_truncate_dim(folders, tmp_path: Path):
    model = reference(folders["bert"])
    model.save_pretrained(str(tmp_path))
    whole = open_folder(EncoderSettings(path=str(tmp_path)))
    edit(tmp_path / "config_sentence_transformers.json", truncate_dim=16)
    encoder = loaded(tmp_path)
    assert (encoder.dim, encoder.space_id != whole.space_id) == (16, True)
    np.testing.assert_allclose(
        encoder.encode(TEXTS), SentenceTransformer(str(tmp_path), device="cpu").encode(list(TEXTS)), atol=1e-5
    )
    np.testing.assert_allclose(
        np.linalg.norm(loaded(tmp_path, normalize=True).encode(TEXTS[:2]), axis=1), 1, atol=1e-6
    )
    trainable = load_trainable(open_folder(EncoderSettings(path=str(tmp_path)))).eval()
    with torch.no_grad():
        np.testing.assert_allclose(
            trainable(trainable.folder.tokenizer()(TEXTS)).numpy(), encoder.encode(TEXTS), atol=1e-5
        )
    edit(tmp_path / "config_sentence_transformers.json", truncate_dim="all")
    with pytest.raises(ModelError, match="truncate_dim as a number of dimensions, 1 or more, found 'all'"):
        loaded(tmp_path)


def test_texts_are_cut_where_processing_kwargs_say(folders, tmp_path: Path):
    model = reference(folders["bert"])
    model.save_pretrained(str(tmp_path))
    edit(
        tmp_path / "sentence_bert_config.json",
        processing_kwargs={"text": {"max_length": 12}},
        max_seq_length=50,
    )
    texts = [text * 3 for text in TEXTS]
    encoder = loaded(tmp_path)
    assert encoder.max_length == 12
    np.testing.assert_allclose(
        encoder.encode(texts), SentenceTransformer(str(tmp_path), device="cpu").encode(texts), atol=1e-5
    )


def test_weights_that_overflow_show_before_any_text_of_a_corpus(tmp_path: Path):
    folder = save_folder(tmp_path, "bert")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.output.dense.weight"][:] = 3e38
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"expected finite vectors, found NaN or infinity for 'A sentence"):
        loaded(folder).check()


def test_an_encoder_that_fails_on_every_text_is_named(tmp_path: Path):
    folder = save_folder(tmp_path, "electra")
    encoder = loaded(folder)
    table = encoder._model._model.embeddings.word_embeddings  # type: ignore[union-attr]
    table.weight.data = table.weight.data[:3]
    with pytest.raises(ModelError, match=r"an encoder that encodes a plain sentence, found IndexError"):
        encoder.check()


@pytest.mark.parametrize("threads", [1, 3])
def test_torchs_number_of_threads_is_the_callers(folders, threads: int):
    torch.set_num_threads(threads)
    encoder = load_encoder(EncoderSettings(path=str(folders["bert"])), EncodeSettings(threads=2))
    encoder.encode(TEXTS)
    assert torch.get_num_threads() == threads


def test_a_string_gives_one_vector_and_any_column_of_strings_gives_rows(minilm: Encoder):
    texts = ["two dogs run", "a girl reads"]
    vectors = minilm.encode(texts)
    assert minilm.encode(texts[0]).shape == (384,)
    np.testing.assert_array_equal(minilm.encode(texts[0]), vectors[0])
    for column in (
        np.array(texts),
        np.array(texts, object),
        pa.array(texts),
        pa.chunked_array([texts[:1], texts[1:]]),
        tuple(texts),
        iter(texts),
    ):
        np.testing.assert_array_equal(minilm.encode(column), vectors)
    pandas = pytest.importorskip("pandas")
    np.testing.assert_array_equal(minilm.encode(pandas.Series(texts)), vectors)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (None, "texts: expected a string or a sequence of strings, found NoneType"),
        (b"bytes", "found bytes"),
        ({"a", "b"}, "texts: expected a string or a sequence of strings, found set"),
        (np.array("x"), "texts: expected a string or a sequence of strings, found ndarray"),
        ({"a": 1}, "found dict"),
        (5, "found int"),
        (["a", None], r"texts\[1\]: expected a string, found NoneType; replace missing texts"),
        ([b"a"], r"texts\[0\]: expected a string, found bytes"),
        (np.zeros((2, 3)), r"texts\[0\]: expected a string, found ndarray"),
    ],
)
def test_anything_else_is_a_type_error_with_a_sentence(minilm: Encoder, texts: Any, words: str):
    with pytest.raises(TypeError, match=words):
        minilm.encode(texts)


def test_a_name_alone_loads_an_encoder_with_the_defaults(minilm: Encoder):
    encoder = load_encoder("all-MiniLM-L6-v2")
    assert encoder.space_id == minilm.space_id
    np.testing.assert_array_equal(encoder.encode("two dogs run"), minilm.encode("two dogs run"))
