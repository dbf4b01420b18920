"""Every kind of encoder folder is read as sentence-transformers reads it, or refused with a sentence."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import PACKAGED_SHA256, locate
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.store import open_store
from tests.models.folders import LONG, TEXTS, edit_json, save_folder


def opened(folder, **changes):
    return open_folder(EncoderSettings(path=str(folder), **changes))


def encoded(folder, **changes) -> np.ndarray:
    return load_encoder(EncoderSettings(path=str(folder), **changes), EncodeSettings()).encode(TEXTS)


def save_sentence_transformer(
    source: Path, folder: Path, pooling="mean", dense: bool = True, **prompts
) -> SentenceTransformer:
    """Transformer, pooling, two Dense layers, normalisation; saved by sentence-transformers itself."""
    torch.manual_seed(1)
    body = Transformer(str(source), max_seq_length=40)
    modules = [body, Pooling(48, pooling)]
    if dense:
        width = modules[1].get_embedding_dimension()
        modules += [
            Dense(width, 32),
            Dense(32, 20, bias=False, activation_function=torch.nn.Identity(), use_residual=True),
        ]
    model = SentenceTransformer(modules=[*modules, Normalize()], device="cpu", **prompts)
    model.save_pretrained(str(folder))
    return model


@pytest.fixture
def bert(folders, tmp_path) -> Path:
    """Copy of a folder, which the test may damage."""
    return Path(shutil.copytree(folders["bert"], tmp_path / "bert"))


@pytest.mark.parametrize(
    "pooling", ["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("cls", "mean")]
)
def test_a_sentence_transformers_folder_with_dense_layers_gives_its_vectors(folders, tmp_path, pooling):
    reference = save_sentence_transformer(folders["bert"], tmp_path / "st", pooling)
    folder = opened(tmp_path / "st")
    assert (folder.dim, folder.max_length, folder.normalize) == (20, 40, True)
    texts = [*TEXTS, "two dogs run " * 40]
    vectors = load_encoder(EncoderSettings(path=str(tmp_path / "st")), EncodeSettings()).encode(texts)
    np.testing.assert_allclose(vectors, reference.encode(texts), atol=1e-5)


def test_dense_layers_keep_bits_whatever_the_neighbours(folders, tmp_path):
    save_sentence_transformer(folders["bert"], tmp_path / "st")
    encoder = load_encoder(EncoderSettings(path=str(tmp_path / "st")), EncodeSettings())
    together = encoder.encode(TEXTS)
    np.testing.assert_array_equal(np.concatenate([encoder.encode([text]) for text in TEXTS]), together)


def test_loading_an_encoder_leaves_torchs_generator_as_it_was(folders, tmp_path):
    save_sentence_transformer(folders["bert"], tmp_path / "st")
    before = torch.get_rng_state()
    load_encoder(EncoderSettings(path=str(tmp_path / "st")), EncodeSettings())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_old_form_of_the_pooling_config_means_the_same(folders, tmp_path):
    save_sentence_transformer(folders["bert"], tmp_path / "st", ("cls", "mean"), dense=False)
    before = encoded(tmp_path / "st")
    config = next((tmp_path / "st").glob("*_Pooling/config.json"))
    config.write_text(
        json.dumps(
            {"word_embedding_dimension": 48, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
        )
    )
    np.testing.assert_array_equal(encoded(tmp_path / "st"), before)


@pytest.mark.parametrize("include", [True, False])
def test_prompts_of_the_folder_are_used_and_may_be_left_out_of_the_pooling(folders, tmp_path, include):
    names = {"prompts": {"query": "two dogs: ", "document": "the text: "}, "default_prompt_name": "document"}
    reference = save_sentence_transformer(folders["bert"], tmp_path / "st", **names)
    reference[1].include_prompt = include
    reference.save_pretrained(str(tmp_path / "st"))
    folder = opened(tmp_path / "st")
    assert (folder.prompt, folder.query_prompt, folder.include_prompt) == (
        "the text: ",
        "two dogs: ",
        include,
    )
    encoder = load_encoder(EncoderSettings(path=str(tmp_path / "st")), EncodeSettings())
    np.testing.assert_allclose(encoder.encode(TEXTS), reference.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(
        encoder.encode(TEXTS, query=True), reference.encode(TEXTS, prompt_name="query"), atol=1e-5
    )
    assert opened(tmp_path / "st", prompt="mine ").query_prompt == "mine "
    assert opened(tmp_path / "st", prompt="mine ", query_prompt="").query_prompt == ""


@pytest.mark.parametrize(
    ("names", "prompts"),
    [
        ({"prompts": {"query": "q: ", "document": "d: "}}, ("d: ", "q: ")),
        ({"prompts": {"query": "q: ", "passage": "p: "}, "default_prompt_name": "query"}, ("p: ", "q: ")),
        ({"prompts": {"query": "q: ", "passage": "p: "}, "default_prompt_name": "passage"}, ("p: ", "q: ")),
        ({"prompts": {"query": "q: ", "document": ""}}, ("", "q: ")),
        ({"prompts": {"query": "q: "}}, ("", "q: ")),
        ({"prompts": {"query": "", "document": "d: "}}, ("", "")),
        ({"prompts": {"task": "t: "}, "default_prompt_name": "task"}, ("t: ", "t: ")),
    ],
)
def test_a_folder_with_prompts_for_queries_and_documents_puts_each_before_its_own(bert, names, prompts):
    edit_json(bert / "config_sentence_transformers.json", **names)
    folder = opened(bert)
    assert (folder.prompt, folder.query_prompt) == prompts
    assert opened(bert, query_prompt="mine ").query_prompt == "mine "
    assert opened(bert, prompt="d: ").query_prompt == "d: "


@pytest.mark.parametrize("said_in", ["tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_folder_that_cuts_texts_at_their_start_is_followed(folders, tmp_path, family, said_in):
    save_sentence_transformer(folders[family], tmp_path / "st", dense=False)
    ends = opened(tmp_path / "st")
    if said_in == "tokenizer_config.json":
        edit_json(tmp_path / "st" / said_in, truncation_side="left")
    else:
        config = tmp_path / "st" / "tokenizer_config.json"
        config.write_text(
            json.dumps(
                {
                    key: value
                    for key, value in json.loads(config.read_text()).items()
                    if key != "truncation_side"
                }
            )
        )
        backend = tokenizers.Tokenizer.from_file(str(tmp_path / "st" / said_in))
        backend.enable_truncation(40, direction="left")
        backend.save(str(tmp_path / "st" / said_in))
    folder = opened(tmp_path / "st")
    assert (ends.cuts, folder.cuts) == ("end", "start")
    assert folder.space_id != ends.space_id
    texts = [*TEXTS, LONG + "two dogs run.", "two dogs run " * 14]
    reference = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    for prompt in ("", "the cat: "):
        encoder = load_encoder(EncoderSettings(path=str(tmp_path / "st"), prompt=prompt), EncodeSettings())
        np.testing.assert_allclose(encoder.encode(texts), reference.encode(texts, prompt=prompt), atol=1e-5)
    assert np.abs(encoder.encode([LONG]) - encoder.encode([LONG + "two dogs run."])).max() > 1e-3


def test_a_plain_folder_takes_the_mean_without_normalisation(folders):
    folder = opened(folders["distilbert"])
    assert (folder.pooling, folder.normalize, folder.dim, folder.max_length, folder.family) == (
        ("mean",),
        False,
        48,
        64,
        "distilbert",
    )
    assert opened(folders["distilbert"], normalize=True, pooling="cls", max_length=12).max_length == 12
    assert opened(folders["electra"]).family == "other"


def test_the_settings_drop_and_add_normalisation(folders, minilm):
    raw = load_encoder(EncoderSettings(normalize=False), EncodeSettings())
    lengths = np.linalg.norm(raw.encode(TEXTS), axis=1)
    assert abs(lengths - 1).min() > 0.01
    np.testing.assert_allclose(raw.encode(TEXTS) / lengths[:, None], minilm.encode(TEXTS), atol=1e-6)
    assert raw.space_id != minilm.space_id
    np.testing.assert_allclose(np.linalg.norm(encoded(folders["bert"], normalize=True), axis=1), 1, atol=1e-6)


def test_positions_limit_the_length(folders):
    # 66 positions, of which two are for padding
    assert opened(folders["roberta"], max_length=64).max_length == 64
    with pytest.raises(
        ModelError, match=r"encoder\.max_length: expected at most the 64 positions of the model, found 65"
    ):
        opened(folders["roberta"], max_length=65)


@pytest.mark.parametrize("spoiled", ["prefix", "gamma", "bin", "sharded", "float16"])
def test_weights_are_read_under_every_historic_form(bert, spoiled):
    before = encoded(bert)
    tensors = load_file(bert / "model.safetensors")
    (bert / "model.safetensors").unlink()
    if spoiled == "prefix":
        save_file(
            {f"bert.{name}": tensor for name, tensor in tensors.items()} | {"cls.bias": torch.zeros(3)},
            bert / "model.safetensors",
        )
    if spoiled == "gamma":
        old = {"weight": "gamma", "bias": "beta"}
        names = {
            name: ".".join([*name.split(".")[:-1], old[name.split(".")[-1]]]) if "LayerNorm" in name else name
            for name in tensors
        }
        save_file({names[name]: tensor for name, tensor in tensors.items()}, bert / "model.safetensors")
    if spoiled == "bin":
        torch.save(tensors, bert / "pytorch_model.bin")
    if spoiled == "float16":
        save_file({name: tensor.half() for name, tensor in tensors.items()}, bert / "model.safetensors")
    if spoiled == "sharded":
        shards = {f"model-{part}-of-2.safetensors": dict(list(tensors.items())[part::2]) for part in (0, 1)}
        for name, part in shards.items():
            save_file(part, bert / name)
        edit_json(
            bert / "model.safetensors.index.json",
            weight_map={name: file for file, part in shards.items() for name in part},
        )
    np.testing.assert_allclose(encoded(bert), before, atol=0 if spoiled != "float16" else 0.05)


def test_a_pickle_that_is_more_than_tensors_is_refused(bert):
    (bert / "model.safetensors").unlink()
    torch.save({"evil": Path("x")}, bert / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: expected a file that contains only tensors"):
        encoded(bert)


def _without(name):
    return lambda folder: (folder / name).unlink()


def _with(name, **changes):
    return lambda folder: edit_json(folder / name, **changes)


def _text(name, text):
    return lambda folder: (folder / name).write_text(text)


def _modules(*kinds):
    entries = [{"type": kind, "path": "" if place == 0 else f"{place}_x"} for place, kind in enumerate(kinds)]
    return _text("modules.json", json.dumps(entries))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without("config.json"), r"config\.json: expected a model's configuration, found no such file"),
        (_text("config.json", "{"), r"config\.json: expected readable JSON"),
        (_text("config.json", "[1]"), r"config\.json: expected a JSON object, found list"),
        (_text("config.json", "[" * 100_000), r"config\.json: expected readable JSON"),
        (
            _with("config.json", hidden_size="wide"),
            r"config\.json: expected a whole number as hidden_size, found 'wide'",
        ),
        (
            _with("config.json", num_hidden_layers=True),
            r"config\.json: expected a whole number as num_hidden_layers, found True",
        ),
        (
            _with("config.json", layer_norm_eps="tiny"),
            r"config\.json: expected a number as layer_norm_eps, found 'tiny'",
        ),
        (
            _with("config.json", pad_token_id="x"),
            r"config\.json: expected a whole number as pad_token_id, found 'x'",
        ),
        (_with("config.json", hidden_act=3), r"config\.json: expected a name as hidden_act, found 3"),
        (_text("tokenizer_config.json", "{"), r"tokenizer_config\.json: expected readable JSON"),
        (_text("tokenizer_config.json", "3"), r"tokenizer_config\.json: expected a JSON object, found int"),
        (
            _without("model.safetensors"),
            r"expected weights in model\.safetensors or pytorch_model\.bin, found neither",
        ),
        (
            _text("model.safetensors", "not weights at all"),
            r"model\.safetensors: expected a whole safetensors file",
        ),
        (
            _with("config.json", num_hidden_layers=4),
            (
                r"the 69 tensors of the model, found 16 missing: "
                r"encoder\.layer\.3\.attention\.self\.query\.weight, .* \.\.\. "
            ),
        ),
        (
            _with("config.json", hidden_size=52),
            r"expected embeddings\.word_embeddings\.weight of shape \(300, 52\), found \(300, 48\)",
        ),
        (
            _modules("sentence_transformers.models.Transformer", "sentence_transformers.models.LSTM"),
            r"found the module sentence_transformers\.models\.LSTM",
        ),
        (
            _modules("sentence_transformers.models.Transformer", "my_own.Pooling"),
            r"found the module my_own\.Pooling",
        ),
        (
            _modules("sentence_transformers.models.Transformer", "sentence_transformers.models.Normalize"),
            r"expected Transformer, Pooling, then",
        ),
        (
            _text("modules.json", '[{"idx": 0}]'),
            r"modules\.json: expected a list of modules with type and path",
        ),
        (
            _text("config.json", '{"model_type": "bert"}'),
            r"config\.json: expected the width of the token states as hidden_size",
        ),
        (
            _with("sentence_bert_config.json", transformer_task="fill-mask"),
            r"expected a Transformer module for feature-extraction, found 'fill-mask'",
        ),
        (_with("model.safetensors.index.json", weight_map={"a": "gone.safetensors"}), None),
        (
            _with("config_sentence_transformers.json", default_prompt_name="passage"),
            r"expected default_prompt_name among no prompts, found 'passage'",
        ),
    ],
)
def test_a_spoiled_folder_is_refused_with_file_expected_and_found(bert, spoil, message):
    spoil(bert)
    if message is None:
        encoded(bert)  # an index beside one whole file is not read
        return
    with pytest.raises(ModelError, match=message) as caught:
        encoded(bert)
    assert caught.value.exit_code == 4
    assert str(bert) in str(caught.value)


def test_an_index_that_names_a_missing_file_is_refused(bert):
    (bert / "model.safetensors").unlink()
    edit_json(bert / "model.safetensors.index.json", weight_map={"a": "gone.safetensors"})
    with pytest.raises(
        ModelError, match=r"expected every file of its weight_map, found no gone\.safetensors"
    ):
        opened(bert)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such/place", "found no such folder"),
        ("./nothing/at/all", "found no such folder"),
        ("file:///no/such/place", "found no such folder"),
        (__file__, "line 1: expected a word and its numbers"),
    ],
)
def test_a_path_that_is_no_folder_is_refused(path, message):
    with pytest.raises(ModelError, match=message):
        locate(path)


def test_a_hub_id_without_network_and_cache_says_what_to_do(tmp_path):
    script = "from pipeline.models.folder.locate import locate; locate('someone/some-encoder')"
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=offline, check=False
    )
    assert (
        "someone/some-encoder: expected an encoder folder or a hub id, found no such folder, and the "
        "hub did not give it"
    ) in done.stderr
    assert "give the path of a folder, or go online" in done.stderr


def test_the_packaged_weights_are_the_published_ones(minilm):
    assert minilm.folder.files["model.safetensors"] == PACKAGED_SHA256
    assert locate("sentence-transformers/all-MiniLM-L6-v2") == locate("all-MiniLM-L6-v2")


def test_a_copy_of_the_named_files_is_the_same_encoder_here_and_in_sentence_transformers(folders, tmp_path):
    reference = save_sentence_transformer(folders["mpnet"], tmp_path / "st")
    folder = opened(tmp_path / "st")
    for name in folder.files:
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder.file(name), tmp_path / "copy" / name)
    assert opened(tmp_path / "copy").space_id == folder.space_id
    np.testing.assert_array_equal(
        SentenceTransformer(str(tmp_path / "copy"), device="cpu").encode(TEXTS), reference.encode(TEXTS)
    )


def test_the_space_follows_what_changes_vectors_and_nothing_else(folders, bert):
    same, plain = opened(bert), opened(folders["bert"])
    assert same.space_id == plain.space_id
    edit_json(bert / "config.json", transformers_version="0.0", architectures=["Other"])
    (bert / "README.md").write_text("words")
    assert opened(bert).space_id == plain.space_id
    changed = [{"pooling": "cls"}, {"prompt": "a "}, {"max_length": 20}, {"normalize": True}]
    spaces = {opened(bert, **change).space_id for change in changed} | {plain.space_id}
    save_folder(bert, "bert", seed=7)
    assert len(spaces | {opened(bert).space_id}) == len(changed) + 2
    assert opened(bert, query_prompt="q ").space_id == opened(bert).space_id


def test_do_lower_case_of_the_folder_is_honoured(folders, tmp_path):
    save_sentence_transformer(folders["bert"], tmp_path / "st", dense=False)
    edit_json(tmp_path / "st" / "sentence_bert_config.json", do_lower_case=True)
    reference = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    texts = ["TWO Dogs RUN.", "two dogs run."]
    vectors = load_encoder(EncoderSettings(path=str(tmp_path / "st")), EncodeSettings()).encode(texts)
    np.testing.assert_array_equal(vectors[0], vectors[1])
    np.testing.assert_allclose(vectors, reference.encode(texts), atol=1e-5)


def test_a_padding_token_spelled_out_in_a_text_has_the_padding_position(folders):
    text = "two [PAD] dogs [PAD] run"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["roberta"])
    model = transformers.AutoModel.from_pretrained(folders["roberta"]).eval()
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].mean(0)
    assert (ids == 1).sum() == 2
    np.testing.assert_allclose(
        load_encoder(EncoderSettings(path=str(folders["roberta"])), EncodeSettings()).encode([text])[0],
        expected,
        atol=1e-5,
    )


def test_reading_a_folder_imports_neither_torch_nor_transformers(folders):
    script = f"""
import sys
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings
import pipeline.text.tokens.tokens, pipeline.text.tokens.budget, pipeline.device
open_folder(EncoderSettings(path={str(folders["bert"])!r}))
print(sorted({{"torch", "transformers", "faiss", "ray"}} & set(sys.modules)))
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_a_folder_in_an_object_store_is_copied_here_once_and_again_when_it_changes(
    folders, tmp_path, s3, monkeypatch
):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    uri = f"{s3}/{tmp_path.name}/encoder"
    store = open_store(uri)
    for name in opened(folders["bert"]).files:
        store.write(name, (folders["bert"] / name).read_bytes())
    store.write("onnx/model.bin", b"another runtime's copy")
    first = opened(uri)
    assert first.space_id == opened(folders["bert"]).space_id
    assert first.path == opened(uri).path
    assert not (first.path / "onnx").exists()
    np.testing.assert_array_equal(encoded(uri), encoded(folders["bert"]))
    store.write("model.safetensors", (folders["mpnet"] / "model.safetensors").read_bytes())
    assert opened(uri).space_id != first.space_id
    with pytest.raises(ModelError, match=r"expected an encoder folder with config\.json, found 0 files"):
        opened(f"{s3}/{tmp_path.name}/nothing")


@pytest.mark.parametrize(
    ("file", "name", "values", "expected"),
    [
        ("config.json", "model_type", (["x"], {}, 3), "a name"),
        ("config.json", "hidden_size", ([48], "48", True), "a whole number"),
        ("config.json", "architectures", ("BertModel", [1]), "a list of names"),
        ("1_Pooling/config.json", "pooling_mode", (3, [], [1], True), "a name, or a list of names,"),
        (
            "sentence_bert_config.json",
            "max_seq_length",
            ("64", -1, [64], 64.5, True),
            "a whole number, 0 or more,",
        ),
        ("sentence_bert_config.json", "do_lower_case", ("false", 1), "true or false"),
        (
            "sentence_bert_config.json",
            "processing_kwargs",
            (3, {"text": 3}, {"common": {"max_length": "x"}}),
            "map",
        ),
        (
            "config_sentence_transformers.json",
            "prompts",
            ([1], "query: ", {"query": 3}),
            "a mapping from names to",
        ),
        ("config_sentence_transformers.json", "default_prompt_name", (["x"], {}), "a name"),
        ("tokenizer_config.json", "model_max_length", ("x", [64], -1), "a number, 0 or more,"),
    ],
)
@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_value_of_another_type_is_named_with_its_file(
    tmp_path, folders, family, file, name, values, expected
):
    folder = shutil.copytree(folders[family], tmp_path / family)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    edit_json(folder / "1_Pooling/config.json", pooling_mode_mean_tokens=True)
    before = open_folder(EncoderSettings(path=str(folder))).space_id
    edit_json(
        folder / file, **({} if name in ("model_type", "hidden_size", "model_max_length") else {name: None})
    )
    assert open_folder(EncoderSettings(path=str(folder))).space_id == before, "null is no value"
    for value in values:
        edit_json(folder / file, **{name: value})
        wanted = re.escape(f"{folder / file}: expected {expected}")
        with pytest.raises(
            ModelError, match=rf"{wanted}.* as {name}, found {re.escape(repr(value))}; restore"
        ):
            open_folder(EncoderSettings(path=str(folder)))
