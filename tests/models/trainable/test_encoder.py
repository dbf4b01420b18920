"""The trainable encoder equals the padded reference, in vectors and in gradients, and what is saved is what
was trained.
"""

import copy
import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.token_filter import load_filter
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.layers.linear import TrainableLinear
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.heads import TanhHead
from pipeline.models.trainable.packed_backbone import Rates, rates_of
from pipeline.models.trainable.saving import save_folder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.tokens import Tokens
from tests.models.folders import FAMILIES, LONG, TEXTS, edit_json
from tests.models.poolings import OF_TRANSFORMERS

PACKED = [family for family in FAMILIES if family != "electra"]


def opened(path, **changes):
    return open_folder(EncoderSettings(path=str(path), **changes))


def tokens_of(path, texts, max_length=64) -> Tokens:
    return load_tokenizer(path, max_length)(texts)


def of_ids(rows) -> Tokens:
    offsets = np.cumsum([0, *map(len, rows)])
    return Tokens(np.concatenate(rows).astype(np.int32), offsets, np.zeros(len(rows), bool))


def many(count: int, seed: int = 0) -> list[str]:
    """Texts of 1 to 40 words: more than one block of them, of many lengths."""
    rng, words = np.random.default_rng(seed), LONG.split()[:16]
    return [" ".join(rng.choice(words, rng.integers(1, 41))) for _ in range(count)]


def padded(model, tokens: Tokens, **inputs) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(hidden states (n, L, d), mask (n, L)) through transformers."""
    rows = np.split(tokens.ids, tokens.offsets[1:-1])
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(row).long() for row in rows], True, model.config.pad_token_id
    )
    mask = torch.arange(ids.shape[1]) < torch.from_numpy(tokens.lengths)[:, None]
    return model(
        input_ids=ids, attention_mask=mask.long(), output_hidden_states=True, **inputs
    ).hidden_states, mask


def mean(states, mask):
    return (states[-1] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_and_every_gradient_equal_those_of_the_padded_model(folders, family):
    encoder, model = (
        load_trainable(opened(folders[family]), dropout=0.0),
        AutoModel.from_pretrained(folders[family]).eval(),
    )
    tokens = tokens_of(folders[family], [*TEXTS, *many(30)])
    vectors, expected = encoder(tokens), mean(*padded(model, tokens))
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0)) / len(tokens)
    (vectors * weights).sum().backward()
    (expected * weights).sum().backward()
    trained = dict((encoder.backbone.model if family == "electra" else encoder.backbone).named_parameters())
    reference = {
        name: parameter.grad for name, parameter in model.named_parameters() if not name.startswith("pooler")
    }
    assert set(trained) - {"pooler.dense.weight", "pooler.dense.bias"} == set(reference)
    for name, gradient in reference.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(trained[name].grad, gradient, atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("family", ["roberta", "mpnet", "electra"])
@pytest.mark.parametrize("pooling", [*OF_TRANSFORMERS, "mean+max"])
def test_every_pooling_equals_the_encoder_and_lets_the_gradient_through(folders, family, pooling):
    folder = opened(folders[family], pooling=pooling)
    encoder = load_trainable(folder).eval()
    vectors = encoder(tokens_of(folders[family], TEXTS))
    np.testing.assert_allclose(
        vectors.detach(),
        load_encoder(EncoderSettings(path=str(folders[family]), pooling=pooling), EncodeSettings()).encode(
            TEXTS
        ),
        atol=1e-5,
    )
    vectors.square().sum().backward()
    name = "embeddings.word_embeddings.weight"
    gradient = next(parameter.grad for full, parameter in encoder.named_parameters() if full.endswith(name))
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", ["nothing", "input", "weight"])
def test_the_linear_layer_equals_the_ordinary_one_forwards_and_backwards(bias, frozen):
    torch.manual_seed(0)
    layer, x, gradient = (
        TrainableLinear(48, 96, bias=bias),
        torch.randn(37, 48, requires_grad=frozen != "input"),
        torch.randn(37, 96),
    )
    layer.weight.requires_grad_(frozen != "weight")
    wanted = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
    expected = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=0)
    for got, reference in zip(
        torch.autograd.grad(layer(x), wanted, gradient),
        torch.autograd.grad(expected, wanted, gradient),
        strict=True,
    ):
        torch.testing.assert_close(got, reference, atol=2e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "max", "weighted_mean", "sqrt_len"])
def test_gradients_of_poolings_equal_finite_differences(folders, pooling):
    encoder = load_trainable(opened(folders["bert"], pooling=pooling), dropout=0.0)
    tokens, bump = tokens_of(folders["bert"], TEXTS[:3]), 3e-3
    direction = torch.randn(encoder(tokens).shape, generator=torch.Generator().manual_seed(1))
    bias = encoder.backbone.get_parameter(
        "encoder.layer.2.output.LayerNorm.bias"
    )  # shifts every token's last state: vectors are linear in it
    (encoder(tokens) * direction).sum().backward()
    with torch.no_grad():
        before = (encoder(tokens) * direction).sum()
        bias[5] += bump
        after = (encoder(tokens) * direction).sum()
    assert (after - before).item() / bump == pytest.approx(bias.grad[5].item(), rel=2e-2, abs=2e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_follows_the_generator_and_rows_draw_masks_of_their_own(folders, family):
    encoder, tokens = (
        load_trainable(opened(folders[family])),
        tokens_of(folders[family], ["Two dogs run.", "x", "Two dogs run."]),
    )
    torch.manual_seed(3)
    first = encoder(tokens)
    torch.manual_seed(3)
    torch.testing.assert_close(encoder(tokens), first, atol=0, rtol=0)
    assert (encoder(tokens) - first).abs().max() > 1e-3
    assert (first[0] - first[2]).abs().max() > 1e-3
    sure = encoder.eval()(tokens)
    torch.testing.assert_close(sure[0], sure[2], atol=1e-6, rtol=0)
    torch.testing.assert_close(
        load_trainable(opened(folders[family]), dropout=0.0)(tokens), sure, atol=0, rtol=0
    )


@pytest.mark.parametrize("family", PACKED)
def test_dropout_at_the_embeddings_zeroes_its_rate_and_keeps_the_mean(folders, family):
    encoder, tokens = (
        load_trainable(opened(folders[family], pooling="static"), dropout=0.3),
        tokens_of(folders[family], many(40)),
    )
    seen = []
    torch.manual_seed(0)
    for _ in range(2):
        encoder(tokens, at_embedding=lambda x, where: seen.append(x.detach()) or x)
        encoder.eval()
    dropped = seen[0] == 0
    assert dropped.float().mean() == pytest.approx(0.3, abs=0.01)
    torch.testing.assert_close(seen[0][~dropped], seen[1][~dropped] / 0.7, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", PACKED)
def test_rates_are_those_of_the_configuration_unless_one_is_given_for_all(folders, tmp_path, family):
    place, distil = shutil.copytree(folders[family], tmp_path / "own"), family == "distilbert"
    edit_json(
        place / "config.json",
        **(
            {"dropout": 0.3, "attention_dropout": 0.2}
            if distil
            else {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
        ),
    )
    assert rates_of(opened(place), None) == Rates(
        0.3, 0.2, 0.0 if distil else 0.3, 0.3
    )  # DistilBERT's blocks have none behind the attention
    assert rates_of(opened(place), 0.05) == Rates(0.05, 0.05, 0.0 if distil else 0.05, 0.05)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet"])
def test_each_place_of_dropout_acts_and_none_beside_them(folders, tmp_path, family):
    """With dropout in one place alone, over many draws the variance is there; the reference's in the same
    place has the same size.
    """
    names = (
        ("dropout", "attention_dropout")
        if family == "distilbert"
        else ("hidden_dropout_prob", "attention_probs_dropout_prob")
    )
    tokens = of_ids(400 * [np.random.default_rng(0).integers(5, 250, 12)])
    for chosen in names:
        place = shutil.copytree(folders[family], tmp_path / chosen)
        edit_json(place / "config.json", **{name: 0.2 * (name == chosen) for name in names})
        torch.manual_seed(0)
        encoder, model = load_trainable(opened(place)), AutoModel.from_pretrained(place).train()
        with torch.no_grad():
            ours, theirs = encoder(tokens).std(0), mean(*padded(model, tokens)).std(0)
        assert (ours / theirs).mean() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_permuted_positions_equal_tokens_fed_in_that_order(folders, family):
    encoder = load_trainable(opened(folders[family]), dropout=0.0).double()  # pooled in float32
    ids, positions = np.array([2, 10, 11, 12, 13, 3]), np.array([0, 3, 1, 4, 2, 5])
    other = np.array([2, 60, 61, 3])  # of another length: the call reorders texts
    together = encoder(of_ids([other, ids]), positions=np.array([0, 1, 2, 3, *positions]))
    torch.testing.assert_close(
        together[1], encoder(of_ids([np.array([2, 11, 13, 10, 12, 3])]))[0], atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        together,
        encoder(of_ids([ids, other]), positions=np.array([*positions, 0, 1, 2, 3])).flip(0),
        atol=1e-6,
        rtol=0,
    )
    plain = encoder(of_ids([other, ids]))
    torch.testing.assert_close(together[0], plain[0], atol=1e-6, rtol=0)
    assert (together[1] - plain[1]).abs().max() > 1e-3
    torch.testing.assert_close(
        encoder(of_ids([other, ids]), positions=np.array([0, 1, 2, 3, 0, 1, 2, 3, 4, 5])),
        plain,
        atol=0,
        rtol=0,
    )


@pytest.mark.parametrize("family", ["roberta", "mpnet", "electra"])
def test_positions_equal_the_references_position_ids(folders, family):
    encoder, model = (
        load_trainable(opened(folders[family]), dropout=0.0),
        AutoModel.from_pretrained(folders[family]).eval(),
    )
    tokens, positions = of_ids([np.array([2, 10, 11, 12, 13, 3])]), np.array([0, 3, 1, 4, 9, 5])
    expected = mean(
        *padded(
            model, tokens, position_ids=torch.from_numpy(positions)[None] + (0 if family == "electra" else 2)
        )
    )
    torch.testing.assert_close(encoder(tokens, positions=positions), expected, atol=1e-5, rtol=0)


def test_positions_outside_the_table_are_refused(folders):
    encoder = load_trainable(opened(folders["roberta"]))
    with pytest.raises(ModelError, match="rows 0 to 65 of the position table"):
        encoder(of_ids([np.array([2, 10])]), positions=np.array([0, 64]))


@pytest.mark.parametrize("family", PACKED)
def test_a_change_at_the_embeddings_sees_each_text_where_the_segments_say(folders, family):
    encoder, rows = (
        load_trainable(opened(folders[family]), dropout=0.0),
        [np.arange(5, 5 + length) for length in (3, 9, 5)],
    )
    plain = encoder(of_ids(rows))

    def cut(x, where):
        """The second text loses all but its first token's state."""
        own = where.indices[where.counts[0] : where.counts[:2].sum()]
        x = x.clone()
        x[own[1:]] = 0
        return x

    changed = encoder(of_ids(rows), at_embedding=cut)
    torch.testing.assert_close(changed[[0, 2]], plain[[0, 2]], atol=1e-6, rtol=0)
    assert (changed[1] - plain[1]).abs().max() > 1e-3
    seen = []

    def watched(x, where):
        x.retain_grad()
        seen.append(x)
        return x

    encoder(of_ids(rows), at_embedding=watched)[0].sum().backward()
    assert (seen[0].grad.abs().sum(1) > 0).sum() == 3  # a text's gradient stays with its own tokens


def test_what_only_the_packed_pass_can_do_is_refused_elsewhere(folders):
    with pytest.raises(ModelError, match="packed families"):
        load_trainable(opened(folders["electra"]))(of_ids([np.arange(5)]), at_embedding=lambda x, where: x)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_equal_when_layers_are_computed_anew_under_dropout(folders, family):
    encoder, tokens = load_trainable(opened(folders[family])), tokens_of(folders[family], many(20))

    def gradients(checkpointed):
        encoder.backbone.checkpointing = checkpointed
        encoder.zero_grad()
        torch.manual_seed(5)
        encoder(tokens).square().sum().backward()
        return torch.rand(1), {
            name: parameter.grad.clone()
            for name, parameter in encoder.named_parameters()
            if parameter.grad is not None
        }

    (after, kept), (again, anew) = gradients(False), gradients(True)
    assert after == again  # the generator has gone equally far
    assert set(kept) == set(anew)
    for name, gradient in kept.items():
        torch.testing.assert_close(anew[name], gradient, atol=0, rtol=0, msg=name)


def test_tokens_that_averages_leave_out_are_left_out(folders):
    changes = {"pooling": "mean", "exclude": ("punctuation", "case")}
    folder, tokenizer = opened(folders["bert"], **changes), load_tokenizer(folders["bert"], 64)
    tokens = tokenizer(TEXTS)
    vectors = (
        load_trainable(folder)
        .eval()(replace(tokens, kept=load_filter(folder, tokenizer)[tokens.ids]))
        .detach()
    )
    np.testing.assert_allclose(
        vectors,
        load_encoder(EncoderSettings(path=str(folders["bert"]), **changes), EncodeSettings()).encode(TEXTS),
        atol=1e-5,
    )


def test_a_prompt_is_pooled_or_left_out_as_the_folder_says(folders, tmp_path):
    source = save_folder(
        load_trainable(opened(folders["bert"], prompt="a man ")),
        opened(folders["bert"], prompt="a man "),
        tmp_path / "saved",
    ).path
    edit_json(source / "1_Pooling" / "config.json", include_prompt=False)
    encoder, reference = (
        load_trainable(opened(source)).eval(),
        load_encoder(EncoderSettings(path=str(source)), EncodeSettings()),
    )
    tokens = load_tokenizer(source, 64, prompt="a man ")(TEXTS)
    np.testing.assert_allclose(encoder(tokens).detach(), reference.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(
        reference.encode(TEXTS), SentenceTransformer(str(source), device="cpu").encode(list(TEXTS)), atol=1e-5
    )


@pytest.mark.parametrize("family", ["bert", "mpnet", "electra"])
def test_a_copy_is_an_encoder_of_its_own(folders, family):
    encoder, tokens = load_trainable(opened(folders[family])).eval(), tokens_of(folders[family], TEXTS)
    before = encoder(tokens).detach()
    for copied in (
        copy.deepcopy(encoder),
        *(() if family == "electra" else (pickle.loads(pickle.dumps(encoder)),)),
    ):  # transformers' hooks do not pickle
        torch.testing.assert_close(copied(tokens), before, atol=0, rtol=0)
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.mul_(0.9)
        assert (copied(tokens) - before).abs().max() > 1e-3
    torch.testing.assert_close(encoder(tokens), before, atol=0, rtol=0)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_half_precision_stays_close_and_its_gradients_are_whole(folders, family):
    encoder, tokens = (
        load_trainable(opened(folders[family]), dropout=0.0),
        tokens_of(folders[family], many(20)),
    )
    exact = encoder(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        half = encoder(tokens)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, exact).min() > 0.999
    half.square().sum().backward()
    gradients = [parameter.grad for parameter in encoder.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def trained(folder, seed=0):
    """After one step of a loss that reaches everything."""
    torch.manual_seed(seed)
    encoder = load_trainable(folder)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    (
        encoder(tokens_of(folder.path / folder.transformer, TEXTS)) * torch.randn(len(TEXTS), encoder.dim)
    ).sum().backward()
    optimizer.step()
    return encoder.eval()


@pytest.mark.parametrize(
    ("family", "pooling", "normalize"),
    [
        *((family, "mean", True) for family in FAMILIES),
        ("bert", "cls", None),
        ("bert", "mean+max", None),
        ("bert", "max+mean", True),
        ("bert", "cls_mlp", True),
        ("distilbert", "cls_mlp", None),
        ("roberta", "weighted_mean", None),
        ("mpnet", "sqrt_len", None),
        ("bert", "last", None),
    ],
)
def test_the_saved_folder_gives_the_vectors_of_the_trained_module(
    folders, tmp_path, family, pooling, normalize
):
    folder = opened(folders[family], pooling=pooling, normalize=normalize, max_length=40)
    encoder = trained(folder)
    saved = save_folder(encoder, folder, tmp_path / "new" / "saved")
    expected = encoder(tokens_of(folders[family], [*TEXTS, LONG], 40)).detach()
    reloaded = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings())
    np.testing.assert_allclose(reloaded.encode([*TEXTS, LONG]), expected, atol=1e-5)
    np.testing.assert_allclose(
        SentenceTransformer(str(saved.path), device="cpu").encode([*TEXTS, LONG]), expected, atol=1e-5
    )
    assert (
        load_trainable(folder).eval()(tokens_of(folders[family], TEXTS[:1]))[0] - expected[0]
    ).abs().max() > 1e-3
    assert (saved.max_length, saved.normalize, saved.dim) == (40, bool(normalize), folder.dim)
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["saved"]
    assert (
        len({file.stat().st_mode for file in saved.path.rglob("*.*") if file.is_file()}) == 1
    )  # whoever reads one file reads all
    again = save_folder(load_trainable(saved), saved, tmp_path / "again")
    assert again.space_id == saved.space_id != folder.space_id
    np.testing.assert_allclose(
        Encoder(again, EncodeSettings(), reloaded.arithmetic.device).encode(TEXTS),
        reloaded.encode(TEXTS),
        atol=1e-6,
    )


@pytest.mark.parametrize("pooling", ["last2", "table", "mean+static"])
def test_a_pooling_of_ours_is_saved_under_its_name_and_refused_by_who_has_none(folders, tmp_path, pooling):
    folder = opened(folders["bert"], pooling=pooling)
    encoder = trained(folder)
    saved = save_folder(encoder, folder, tmp_path / "saved")
    assert saved.pooling == tuple(pooling.split("+"))
    expected = encoder(tokens_of(folders["bert"], TEXTS)).detach()
    np.testing.assert_allclose(
        load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS),
        expected,
        atol=1e-5,
    )
    with pytest.raises(ValueError, match="pooling mode"):
        SentenceTransformer(str(saved.path), device="cpu")


def test_a_head_kept_at_inference_is_a_module_of_the_folder_and_one_that_is_not_leaves_no_trace(
    folders, tmp_path
):
    folder = opened(folders["distilbert"], pooling="cls")
    encoder, head = trained(folder), TanhHead(48)
    with_head, without = (
        save_folder(encoder, folder, tmp_path / "with", head=head),
        save_folder(encoder, folder, tmp_path / "without"),
    )
    vectors = encoder(tokens_of(folders["distilbert"], TEXTS))
    for saved, expected in ((with_head, head(vectors)), (without, vectors)):
        np.testing.assert_allclose(
            SentenceTransformer(str(saved.path), device="cpu").encode(list(TEXTS)),
            expected.detach(),
            atol=1e-5,
        )
        np.testing.assert_allclose(
            load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS),
            expected.detach(),
            atol=1e-5,
        )
    assert [len(saved.tail) for saved in (with_head, without)] == [1, 0]
    assert with_head.space_id != without.space_id


def test_prompts_of_the_settings_are_those_of_the_saved_folder(folders, tmp_path):
    folder = opened(folders["bert"], prompt="a man ", query_prompt="two dogs ")
    saved = save_folder(load_trainable(folder), folder, tmp_path / "saved")
    assert (saved.prompt, saved.query_prompt) == ("a man ", "two dogs ")
    queries = opened(folders["bert"], query_prompt="two dogs ")
    saved = save_folder(load_trainable(queries), queries, tmp_path / "queries")
    assert (saved.prompt, saved.query_prompt) == ("", "two dogs ")


def test_a_checkpoint_with_a_prefix_half_precision_and_another_head_keeps_its_names(folders, tmp_path):
    source = tmp_path / "source"
    AutoModel.from_pretrained(folders["bert"]).save_pretrained(source)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).write_bytes((folders["bert"] / name).read_bytes())
    own = load_file(source / "model.safetensors")
    named = {f"bert.{name}": tensor.half() for name, tensor in own.items()}
    save_file(
        named | {"cls.predictions.bias": torch.zeros(300)}, source / "model.safetensors", {"format": "pt"}
    )
    edit_json(source / "config.json", dtype="float16", architectures=["BertForMaskedLM"])
    folder = opened(source)
    encoder = trained(folder)
    saved = save_folder(encoder, folder, tmp_path / "saved")
    written = load_file(saved.path / "model.safetensors")
    assert set(written) == {f"bert.{name}" for name in own}
    assert {tensor.dtype for tensor in written.values()} == {torch.float32}
    np.testing.assert_allclose(
        SentenceTransformer(str(saved.path), device="cpu").encode(list(TEXTS)),
        encoder(tokens_of(source, TEXTS)).detach(),
        atol=1e-5,
    )


def test_the_folder_is_whole_or_not_there_and_nothing_is_overwritten(folders, tmp_path):
    folder = opened(folders["bert"])
    encoder = load_trainable(folder)
    (tmp_path / "taken").mkdir()
    with pytest.raises(ModelError, match="a new path"):
        save_folder(encoder, folder, tmp_path / "taken")
    with pytest.raises(FileNotFoundError):
        save_folder(encoder, replace(folder, files={**folder.files, "gone.txt": "0"}), tmp_path / "torn")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["taken"]


def test_the_packaged_minilm_trains_and_saves(minilm, tmp_path):
    encoder = load_trainable(minilm.folder).eval()
    texts = [*TEXTS, *many(20)]
    vectors = encoder(tokens_of(minilm.folder.path, texts, 256))
    np.testing.assert_allclose(vectors.detach(), minilm.encode(texts), atol=1e-5)
    saved = save_folder(encoder, minilm.folder, tmp_path / "saved")
    assert json.loads((saved.path / "modules.json").read_text())[-1]["path"] == "2_Normalize"
    np.testing.assert_array_equal(
        Encoder(saved, EncodeSettings(), minilm.arithmetic.device).encode(texts), minilm.encode(texts)
    )


def test_word_vectors_are_not_trained_here(tmp_path):
    (tmp_path / "words.txt").write_text("dog 1 0 0\ncat 0 1 0\n")
    with pytest.raises(ModelError, match="an encoder to train"):
        load_trainable(open_folder(EncoderSettings(path=str(tmp_path / "words.txt"))))
