"""Saving of trained encoders as folders for this project, sentence-transformers and embedding servers."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.models.folder.concatenated import JOINED_CONFIG, PART_FOLDERS
from pipeline.models.folder.encoder_folder import ENDS_SENTENCES, MASKED, EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.modules import OWN_MODULES, read_json
from pipeline.models.layers.pooling import POOLINGS, ST_FLAGS
from pipeline.models.layers.post_pooling import CutModule, DenoiseModule, DenseModule, mlp_name
from pipeline.models.layers.weights import open_checkpoint
from pipeline.models.trainable import template_modules
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.lora import merged
from pipeline.models.trainable.padded_backbone import PaddedBackbone
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.models.trainable.soft_prompt import WORDS_TABLE, LearnedTemplate
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.templates import add_tokens, wrap_tokenizer

_WEIGHTS = "model.safetensors"
# files of the starting folder that are rewritten instead of copied
_REWRITTEN = ("config.json", "modules.json", "config_sentence_transformers.json")
_MODULES = "sentence_transformers.models."  # known to every version of that library, and to servers
# Classes of template_modules by the kind of module that they replace in folders with mask pooling.
_TEMPLATE_CLASSES = {"Pooling": "MaskPooling", "Denoise": "Denoise"}
# sentence-transformers looks for this name first, also in folders of other families than BERT.
_ST_CONFIG = "sentence_bert_config.json"


def save_folder(
    encoder: TrainableEncoder, folder: EncoderFolder, path: Path | str, *, head: DenseModule | None = None
) -> EncoderFolder:
    """Save the encoder, as it is in eval(), in float32, and open the new folder.

    The folder appears complete or not at all.

    Adapters are merged into the weights. A cls_mlp layer becomes a Dense module if it is the only pooling. A
    pooling without a name in sentence-transformers gets the name of this project, which that library refuses;
    mask pooling works there with trust_remote_code.

    Args:
        encoder: to save.
        folder: folder that the encoder was loaded from, with the overrides of the settings. It gives config,
            tokenizer, prompts and max_length.
        path: of the new folder.
        head: head of an objective to add as a last Dense module, or None.

    Raises:
        ModelError: `path` exists.
    """
    plain = merged(encoder)
    return _create_folder(path, lambda scratch: _write(plain, folder, scratch, head))


def save_joined(encoders: Sequence[TrainableEncoder], path: Path | str) -> EncoderFolder:
    """Save encoders whose vectors are concatenated, each in a folder of its own, and open the outer folder.

    Every job opens the outer folder as one encoder; other libraries refuse it, but load each inner folder.

    Raises:
        ModelError: `path` exists, or the encoders read texts differently.
    """

    def write(scratch: Path) -> None:
        for name, encoder in zip(PART_FOLDERS, encoders, strict=True):
            save_folder(encoder, encoder.folder, scratch / name)
        write_json(scratch / "config.json", JOINED_CONFIG)

    return _create_folder(path, write)


def _create_folder(path: Path | str, write: Callable[[Path], None]) -> EncoderFolder:
    """Create the folder at `path` through `write`, and open it. It appears complete or not at all."""
    target = Path(path).absolute()
    if target.exists():
        raise ModelError(str(target), "a new path", "an existing one", "name another, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        written = Path(scratch) / target.name
        written.mkdir()
        write(written)
        # safetensors gives permissions to the owner only, but a server may have another user
        for file in written.rglob("*.safetensors"):
            file.chmod((written / "config.json").stat().st_mode)
        open_folder(EncoderSettings(path=str(written)))  # raises an error if it cannot be loaded
        written.rename(target)
    return open_folder(EncoderSettings(path=str(target)))


def _write(encoder: TrainableEncoder, folder: EncoderFolder, to: Path, head: DenseModule | None) -> None:
    _copy_tokenizer(folder, to)
    words = _write_template(encoder, folder, to)
    _write_weights(encoder, folder, to, words)
    changed: dict[str, Any] = {key: "float32" for key in ("dtype", "torch_dtype") if key in folder.config}
    if words:
        changed["vocab_size"] = max(map(len, words.values()))
    write_json(to / "config.json", dict(folder.config) | changed)
    config = read_json(folder.beside_config(_ST_CONFIG))
    config.pop("processing_kwargs", None)  # because its max_length takes precedence over max_seq_length
    config |= {"max_seq_length": folder.max_length, "do_lower_case": folder.lower}
    write_json(to / _ST_CONFIG, config | ({ENDS_SENTENCES: True} if folder.ends_sentences else {}))
    write_json(to / "config_sentence_transformers.json", _prompts_config(folder))
    _write_modules(encoder, folder, to, head)


def _write_modules(
    encoder: TrainableEncoder, folder: EncoderFolder, to: Path, head: DenseModule | None
) -> None:
    """Write modules.json, and a folder for each module after the transformer."""
    pooling, layers = _layers(encoder, head)
    configs = list(map(_layer_config, layers))
    kinds = ["Transformer", "Pooling", *(kind for kind, _ in configs)]
    names = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], start=1))]
    types = {kind: _MODULES + kind for kind in kinds}
    pooling_config = _pooling_config(pooling, encoder.backbone.width, folder.include_prompt)
    if folder.pooling == MASKED:
        pooling_config["mask"] = folder.tokenizer().mask  # position of the template's mask
        # sentence-transformers has no such modules, and loads them from this file of the folder
        shutil.copyfile(template_modules.__file__, to / f"{OWN_MODULES}.py")
        types |= {kind: f"{OWN_MODULES}.{name}" for kind, name in _TEMPLATE_CLASSES.items()}
    write_json(to / names[1] / "config.json", pooling_config)
    for layer, name, (_, config) in zip(layers, names[2:], configs, strict=True):
        (to / name).mkdir()
        if config:
            write_json(to / name / "config.json", config)
            _save_tensors(layer.state_dict(), to / name / _WEIGHTS)
    entries = [
        {"idx": number, "name": str(number), "path": name, "type": types[kind]}
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    write_json(to / "modules.json", entries)


def _write_template(encoder: TrainableEncoder, folder: EncoderFolder, to: Path) -> dict[str, Tensor]:
    """Make the saved tokenizer wrap each text in the template.

    Free vectors of a learned template become new words: tokens of the tokenizer and rows of the word table.

    Returns:
        The word table with the new rows, by its name in the checkpoint; empty without free vectors.
    """
    if folder.template is None:
        return {}
    if not isinstance(encoder, LearnedTemplate):
        wrap_tokenizer(to, *folder.tokenizer().around)
        return {}
    new_ids = add_tokens(to, encoder.free_vectors)
    template, before = tuple(encoder.template_ids(new_ids).tolist()), len(encoder.frame.prefix)
    wrap_tokenizer(to, template[:before], template[before:])
    return {f"{WORDS_TABLE}.weight": encoder.words.table_with(new_ids)}


def _write_weights(
    encoder: TrainableEncoder, folder: EncoderFolder, to: Path, words: Mapping[str, Tensor]
) -> None:
    """Write the weights under their names in the checkpoint that the encoder was loaded from.

    Weights of the checkpoint that the encoder does not have, such as a pooler, are copied. `words` replaces
    the backbone's word table.
    """
    if isinstance(encoder.backbone, PaddedBackbone):
        encoder.backbone.model.save_pretrained(to, max_shard_size="1000GB")  # one file
        return
    checkpoint = open_checkpoint(folder)
    trained: dict[str, Tensor] = dict(encoder.backbone.named_parameters()) | dict(words)
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


def _prompts_config(folder: EncoderFolder) -> dict[str, Any]:
    """Return config_sentence_transformers.json, with the prompts of the settings if they differ."""
    config = read_json(folder.path / "config_sentence_transformers.json") or {
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    without_settings = open_folder(EncoderSettings(path=str(folder.path)))
    if (without_settings.prompt, without_settings.query_prompt) == (folder.prompt, folder.query_prompt):
        return config
    return config | {
        "prompts": {"document": folder.prompt, "query": folder.query_prompt},
        "default_prompt_name": "document" if folder.prompt else None,
    }


def _layers(
    encoder: TrainableEncoder, head: DenseModule | None
) -> tuple[tuple[str, ...], list[torch.nn.Module]]:
    """Return the pooling and the modules after it, with heads as Dense modules."""
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
    # A cut is not a module: config_sentence_transformers.json has the number of dimensions.
    layers = [layer for layer in layers if not isinstance(layer, CutModule)]
    return pooling, [layer for layer in (denoising, *layers, head) if layer is not None]


def _pooling_config(pooling: Sequence[str], width: int, include_prompt: bool) -> dict[str, Any]:
    """Return the config of the pooling.

    It has a flag for each mode, which every version of sentence-transformers and servers read. If a mode has
    no flag, or the order of the modes is not that of the flags, it has a list of modes instead.
    """
    config: dict[str, Any] = {"word_embedding_dimension": width, "include_prompt": include_prompt}
    if list(pooling) == [mode for mode in ST_FLAGS.values() if mode in pooling]:
        return config | {flag: mode in pooling for flag, mode in ST_FLAGS.items()}
    return config | {"pooling_mode": [POOLINGS[mode].st_name or mode for mode in pooling]}


def _layer_config(layer: torch.nn.Module) -> tuple[str, dict[str, Any]]:
    """Return the kind of a module, and its config; empty for a module without weights."""
    if isinstance(layer, DenseModule):
        dense = layer.described
        module = "linear" if dense.activation == "Identity" else "activation"
        config = {
            "in_features": dense.in_features,
            "out_features": dense.out_features,
            "bias": dense.bias,
            "activation_function": f"torch.nn.modules.{module}.{dense.activation}",
        }
        return "Dense", config | ({"use_residual": True} if dense.residual else {})
    if isinstance(layer, DenoiseModule):
        denoising = layer.described()
        return "Denoise", {
            "width": denoising.width,
            "activation": denoising.activation,
            "epsilon": denoising.epsilon,
            "shortest": denoising.shortest,
            "longest": denoising.shortest + len(layer.table) - 1,
        }
    return "Normalize", {}


def write_json(file: Path, value: object) -> None:
    """Write a value as indented JSON; create the file's folder."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
