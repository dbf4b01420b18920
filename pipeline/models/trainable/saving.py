"""Save trained encoders as folders for this project, sentence-transformers and embedding servers.

This module does not depend on training.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.classic.word_table import WordTable
from pipeline.models.folder.concatenated import JOINED_CONFIG, PART_FOLDERS
from pipeline.models.folder.cross_encoder import CROSS_ENCODER, LIBRARY, without_cross_encoder
from pipeline.models.folder.encoder_folder import ENDS_SENTENCES, MASKED, MODEL2VEC, EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.identity import pooled_width
from pipeline.models.folder.modules import OWN_MODULES, STATIC_EMBEDDING, Dense, read_json, write_json
from pipeline.models.folder.reading import NO_LIMIT
from pipeline.models.folder.static_embedding import OWN_SETTINGS, TABLES
from pipeline.models.folder.vectorfile import word2vec_text
from pipeline.models.folder.word_vectors import read_words
from pipeline.models.layers.post_pooling import (
    DenseModule,
    SavedModule,
    TruncationModule,
    mlp_name,
    saved_module,
)
from pipeline.models.layers.weights import open_checkpoint, open_files
from pipeline.models.spec.pooling import POOLINGS, ST_FLAGS
from pipeline.models.trainable import template_modules
from pipeline.models.trainable.classifier import Classifier, with_classifier
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.lora import merge_adapters
from pipeline.models.trainable.mlm_head import LanguageHead, can_be_saved, with_language_head
from pipeline.models.trainable.packed_backbone import PackedBackbone
from pipeline.models.trainable.padded_backbone import PaddedBackbone
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.models.trainable.soft_prompt import LearnedTemplate
from pipeline.settings import EncoderSettings
from pipeline.store.files.disk import temporary_folder
from pipeline.text.tokens.templates import add_tokens, wrap_tokenizer

_WEIGHTS = "model.safetensors"
_WORD2VEC = "word2vec.txt"  # the word vectors in another format, for other programs
# files of the starting folder that are rewritten instead of copied
_REWRITTEN = ("config.json", "modules.json", "config_sentence_transformers.json")
# Every version of sentence-transformers finds its modules under this name, and so do embedding servers.
_ST_MODULES = "sentence_transformers.models."
# Classes of template_modules by the kind of module that they replace in folders with mask pooling.
_TEMPLATE_CLASSES = {"Pooling": "MaskPooling", "Denoise": "Denoise"}
# sentence-transformers looks for this name first, also in folders of other families than BERT.
_ST_CONFIG = "sentence_bert_config.json"


class SavedHeads(NamedTuple):
    """Heads of an encoder. None: there is no such head."""

    head: DenseModule | None = None
    """head of an objective to add as the last Dense module"""
    language_head: LanguageHead | None = None
    """head for masked words, which AutoModelForMaskedLM of transformers finds in the folder. It is left out
    if its names are not known (`mlm_head.can_be_saved`), or if the template has new words"""
    classifier: Classifier | None = None
    """classifier, which AutoModelForSequenceClassification of transformers finds in the folder. The
    encoder's vector must be the output of the layer that `classifier.pooler_of` returns. If the classifier
    reads pairs, the folder is a cross-encoder of sentence-transformers instead of an encoder"""

    @property
    def is_cross_encoder(self) -> bool:
        """True if the encoder reads pairs of texts."""
        return self.classifier is not None and self.classifier.reads_pairs

    def named(self, encoder: TrainableEncoder, file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return language head and classifier with the encoder's weights, named as transformers names them.

        Args:
            encoder: the encoder.
            file: the weights of the encoder alone.

        Returns:
            All tensors, and the changes of config.json; both empty if there is neither head.
        """
        language_head = self.language_head if can_be_saved(encoder.folder) else None
        if language_head is None and self.classifier is None:
            return {}, {}
        written = open_files(str(file), [file])
        tensors = {name: written.raw(name) for name in written.names}
        named: dict[str, Tensor] = {}
        changed: dict[str, Any] = {}
        if language_head is not None:
            named |= with_language_head(tensors, language_head, encoder.folder)
            changed["tie_word_embeddings"] = language_head.table is None
        if self.classifier is not None:
            named |= with_classifier(tensors, self.classifier, encoder)
            changed |= self.classifier.config(str(encoder.folder.config["model_type"]))
        return named, changed


def save_folder(
    encoder: TrainableEncoder,
    folder: EncoderFolder,
    path: Path | str,
    heads: SavedHeads = SavedHeads(),
) -> EncoderFolder:
    """Save the encoder in float32, and open the new folder.

    The folder appears complete or not at all, and gives the vectors of the encoder in eval(). Adapters are
    merged into the weights. If cls_mlp is the only pooling, its layer becomes a Dense module. A pooling that
    sentence-transformers does not have keeps its name, which that library refuses; mask pooling works there
    with trust_remote_code. Word vectors are also written in word2vec's text form, as word2vec.txt, which no
    command needs.

    Args:
        encoder: encoder to save.
        folder: folder that the encoder was loaded from, with the overrides of the settings. It gives config,
            tokenizer, prompts and max_length.
        path: path of the new folder.
        heads: layers after the encoder to save with it.

    Raises:
        ModelError: `path` exists.
    """
    plain = merge_adapters(encoder)
    return _create_folder(path, lambda scratch: _write(plain, folder, scratch, heads))


def save_joined(
    encoders: Sequence[TrainableEncoder], path: Path | str, *, language_head: LanguageHead | None = None
) -> EncoderFolder:
    """Save encoders whose vectors are concatenated, each in a folder of its own, and open the outer folder.

    `language_head` is the first encoder's head for masked words, saved in its folder; see `SavedHeads`.

    Every job opens the outer folder as one encoder; other libraries refuse it, but load each inner folder.

    Raises:
        ModelError: `path` exists, or the encoders read texts differently.
    """

    def write(scratch: Path) -> None:
        for name, encoder in zip(PART_FOLDERS, encoders, strict=True):
            own_head = language_head if encoder is encoders[0] else None
            save_folder(encoder, encoder.folder, scratch / name, SavedHeads(language_head=own_head))
        write_json(scratch / "config.json", JOINED_CONFIG)

    return _create_folder(path, write)


def _create_folder(path: Path | str, write: Callable[[Path], None]) -> EncoderFolder:
    """Create the folder at `path` through `write`, and open it. It appears complete or not at all."""
    target = Path(path).absolute()
    if target.exists():
        raise ModelError(str(target), "a new path", "an existing one", "name another, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(f".{target.name}-", str(target.parent)) as scratch:
        folder = scratch / target.name
        folder.mkdir()
        write(folder)
        # safetensors gives permissions to the owner only, but a server may run as another user
        for file in folder.rglob("*.safetensors"):
            file.chmod(next(folder.rglob("*.json")).stat().st_mode)
        # raises ModelError if it cannot be opened
        open_folder(EncoderSettings(path=str(folder)), cross_encoder=True)
        folder.rename(target)
    return open_folder(EncoderSettings(path=str(target)), cross_encoder=True)


def _write(encoder: TrainableEncoder, folder: EncoderFolder, to: Path, heads: SavedHeads) -> None:
    """Write all files of the encoder into the empty folder `to`."""
    if folder.family == "static":
        _write_static(encoder, folder, to)
        _write_modules(encoder, folder, to, heads.head)
        return
    _copy_tokenizer(folder, to)
    word_table = _write_template(encoder, folder, to)
    _write_weights(encoder, folder, to, word_table)
    if isinstance(encoder.backbone, WordTable):
        vectors = encoder.backbone.word_table.detach().cpu().numpy()
        (to / _WORD2VEC).write_bytes(word2vec_text(read_words(to), vectors))
    changed: dict[str, Any] = {key: "float32" for key in ("dtype", "torch_dtype") if key in folder.config}
    if word_table is not None:
        changed["vocab_size"] = len(word_table)
    else:
        tensors, changed_by_heads = heads.named(encoder, to / _WEIGHTS)
        if tensors:
            _save_tensors(tensors, to / _WEIGHTS)
        changed |= changed_by_heads
    write_json(
        to / "config.json", {key: folder.config[key] for key in folder.config if key != LIBRARY} | changed
    )
    config = read_json(folder.transformer_path / _ST_CONFIG)
    # not copied, because its max_length takes precedence over max_seq_length
    config.pop("processing_kwargs", None)
    config |= {"max_seq_length": folder.max_length, "do_lower_case": folder.lower}
    config |= {ENDS_SENTENCES: True} if folder.ends_sentences else {}
    if heads.is_cross_encoder:
        write_json(to / _ST_CONFIG, {**config, **CROSS_ENCODER})
        return  # without modules.json, which would need a Pooling module
    write_json(to / _ST_CONFIG, without_cross_encoder(config))
    _write_modules(encoder, folder, to, heads.head)


def _write_static(encoder: TrainableEncoder, folder: EncoderFolder, to: Path) -> None:
    """Write float32 table, tokenizer and limits of an encoder whose backbone is a table, but no modules.

    The mapping and the weights of model2vec are applied to the trained table already.
    """
    import tokenizers

    library = folder.config["model_type"]
    name = next(name for name, each in TABLES.items() if each == library)
    table = encoder.backbone.word_table.detach().to("cpu", torch.float32, copy=True).contiguous()
    save_file({name: table}, to / "model.safetensors", metadata={"format": "pt"})
    limit = folder.max_length if folder.max_length < NO_LIMIT else None
    backend = tokenizers.Tokenizer.from_file(str(folder.transformer_path / "tokenizer.json"))
    backend.no_truncation()
    if limit is not None:
        backend.enable_truncation(limit, direction="left" if folder.truncation_side == "start" else "right")
    backend.save(str(to / "tokenizer.json"), pretty=False)
    if folder.ends_sentences:
        (to / OWN_SETTINGS).write_text(json.dumps({ENDS_SENTENCES: True}))
    if library == MODEL2VEC:
        config = read_json(folder.transformer_path / "config.json")
        config.pop("vocabulary_quantization", None)
        changed = {"normalize": folder.normalize, "max_length": limit, "embedding_dtype": "float32"}
        (to / "config.json").write_text(json.dumps({"model_type": MODEL2VEC, **config, **changed}, indent=1))


def _write_modules(
    encoder: TrainableEncoder, folder: EncoderFolder, to: Path, head: DenseModule | None
) -> None:
    """Write modules.json, a folder for each module after the first, and prompts and truncate_dim."""
    pooling, all_layers = _layers(encoder, head)
    layers, truncate_dim = without_truncations(all_layers, pooled_width(encoder.folder))
    write_json(to / "config_sentence_transformers.json", _library_config(folder, truncate_dim))
    own_types: dict[str, str] = {}
    config = pooling_config(pooling, encoder.backbone.width, folder.include_prompt)
    if folder.pooling == MASKED:
        config["mask"] = folder.tokenizer().mask  # position of the template's mask
        # sentence-transformers has no such modules, and loads them from this file of the folder
        shutil.copyfile(template_modules.__file__, to / f"{OWN_MODULES}.py")
        own_types = {kind: f"{OWN_MODULES}.{name}" for kind, name in _TEMPLATE_CLASSES.items()}
    weights = {} if encoder.ngrams is None else encoder.ngrams.state_dict()
    is_static = folder.family == "static"
    pooled = [] if is_static else [SavedModule("Pooling", config, weights)]
    modules = [*pooled, *map(saved_module, layers)]
    first = STATIC_EMBEDDING if is_static else "Transformer"
    entries: list[dict[str, object]] = [{"idx": 0, "name": "0", "path": "", "type": f"{_ST_MODULES}{first}"}]
    for number, module in enumerate(modules, start=1):
        path = f"{number}_{module.kind}"
        (to / path).mkdir()
        if module.config:
            write_json(to / path / "config.json", module.config)
        if module.tensors:
            _save_tensors(module.tensors, to / path / _WEIGHTS)
        type_name = own_types.get(module.kind, _ST_MODULES + module.kind)
        entries.append({"idx": number, "name": str(number), "path": path, "type": type_name})
    write_json(to / "modules.json", entries)


def _write_template(encoder: TrainableEncoder, folder: EncoderFolder, to: Path) -> Tensor | None:
    """Make the saved tokenizer wrap each text in the template.

    Free vectors of a learned template become new words: tokens of the tokenizer and rows of the word table.

    Returns:
        The word table with the new rows; None if there are no new words.
    """
    if folder.template is None:
        return None
    if not isinstance(encoder, LearnedTemplate):
        tokenizer = folder.tokenizer()
        wrap_tokenizer(to, tokenizer.prefix, tokenizer.suffix)
        return None
    new_ids = add_tokens(to, encoder.free_vectors)
    template, prefix_length = tuple(encoder.template_ids(new_ids).tolist()), len(encoder.frame.prefix)
    wrap_tokenizer(to, template[:prefix_length], template[prefix_length:])
    return encoder.words.table_with(new_ids)


def _write_weights(
    encoder: TrainableEncoder, folder: EncoderFolder, to: Path, word_table: Tensor | None
) -> None:
    """Write the weights under their names in the checkpoint that the encoder was loaded from.

    Weights of the checkpoint that the encoder does not have, such as a pooler, are copied. `word_table`
    replaces the backbone's, unless it is None.
    """
    if isinstance(encoder.backbone, PaddedBackbone):
        encoder.backbone.model.save_pretrained(to, max_shard_size="1000GB")  # one file
        return
    checkpoint = open_checkpoint(folder)
    trained: dict[str, Tensor] = dict(encoder.backbone.named_parameters())
    if word_table is not None:
        assert isinstance(encoder.backbone, PackedBackbone), "only templates of free vectors have a table"
        trained[f"{encoder.backbone.names.words}.weight"] = word_table
    if encoder.mlp is not None and (name := mlp_name(checkpoint)):
        trained |= {f"{name}.{part}": value for part, value in encoder.mlp.linear.named_parameters()}
    tensors = {
        original: trained.get(name, checkpoint.raw(name)) for name, original in checkpoint.names.items()
    }
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    _save_tensors(floats, to / _WEIGHTS)


def _save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    copies = {
        name: tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(copies, file, metadata={"format": "pt"})


def _copy_tokenizer(folder: EncoderFolder, to: Path) -> None:
    """Copy the tokenizer, and other files in the folder of config.json that loading needs."""
    for name in set(folder.files) - set(folder.weights):
        file = Path(name)
        rewritten = file.name in _REWRITTEN or file.match("sentence_*_config.json")
        if file.parent == Path(folder.transformer) and not rewritten:
            shutil.copyfile(folder.file(name), to / file.name)


def _library_config(folder: EncoderFolder, truncate_dim: int | None) -> dict[str, Any]:
    """Return config_sentence_transformers.json, with the settings' prompts if the folder has others."""
    config = read_json(folder.path / "config_sentence_transformers.json") or {
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    config.pop("truncate_dim", None)
    config |= {} if truncate_dim is None else {"truncate_dim": truncate_dim}
    without_settings = open_folder(EncoderSettings(path=str(folder.path)), cross_encoder=True)
    if (without_settings.prompt, without_settings.query_prompt) == (folder.prompt, folder.query_prompt):
        return config
    return config | {
        "prompts": {"document": folder.prompt, "query": folder.query_prompt},
        "default_prompt_name": "document" if folder.prompt else None,
    }


def _layers(
    encoder: TrainableEncoder, head: DenseModule | None
) -> tuple[tuple[str, ...], list[torch.nn.Module]]:
    """Return the poolings to save, and the modules after them, with heads as Dense modules."""
    pooling, layers = encoder.folder.pooling, list(encoder.tail)
    if encoder.mlp is not None and pooling == ("cls_mlp",):
        pooling, layers = ("cls",), [encoder.mlp, *layers]
    if "cls_mlp" in pooling and mlp_name(open_checkpoint(encoder.folder)) is None:
        raise ModelError(
            "encoder.pooling",
            "cls_mlp alone, because the starting encoder has no such layer",
            "+".join(pooling),
            "train with one pooling",
        )
    denoising = encoder.denoising() if isinstance(encoder, PromptedEncoder) else None
    return pooling, [layer for layer in (denoising, *layers, head) if layer is not None]


def pooling_config(pooling: Sequence[str], width: int, include_prompt: bool) -> dict[str, Any]:
    """Return the config.json of the pooling.

    It has a flag for each pooling, which servers and every version of sentence-transformers read. If a
    pooling has no flag, or the poolings are not in the flags' order, it has a list of poolings instead.
    """
    config: dict[str, Any] = {"word_embedding_dimension": width, "include_prompt": include_prompt}
    if list(pooling) == [name for name in ST_FLAGS.values() if name in pooling]:
        return config | {flag: name in pooling for flag, name in ST_FLAGS.items()}
    return config | {"pooling_mode": [POOLINGS[name].st_name or name for name in pooling]}


def without_truncations(layers: Sequence[nn.Module], width: int) -> tuple[list[nn.Module], int | None]:
    """Replace truncations, for which sentence-transformers has no module.

    A truncation at the end becomes truncate_dim, which that library applies last; one before another layer
    becomes a Dense module whose matrix selects the first components, so that values stay the same.

    Args:
        layers: layers after the pooling, in order.
        width: dimension of the pooled vectors.

    Returns:
        The layers, and truncate_dim or None.
    """
    portable: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, TruncationModule):
            portable.append(_selection(width, layer.width))
            width = layer.width
        else:
            portable.append(layer)
            width = layer.config.out_features if isinstance(layer, DenseModule) else width
    is_last = bool(layers) and isinstance(layers[-1], TruncationModule)
    return (portable[:-1], width) if is_last else (portable, None)


def _selection(width: int, kept: int) -> DenseModule:
    """Return a layer that keeps the first `kept` components of vectors (n, width)."""
    dense = DenseModule(Dense("", width, kept, bias=False, activation="Identity", residual=False))
    dense.linear.weight = nn.Parameter(torch.eye(kept, width))
    return dense
