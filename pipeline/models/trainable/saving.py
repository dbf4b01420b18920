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
from pipeline.models.folder.concatenated import DESCRIBED, PARTS
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
# files that are written here, not copied from the starting folder
_WRITTEN = ("config.json", "modules.json", "config_sentence_transformers.json")
_MODULES = "sentence_transformers.models."  # known to every version of that library, and to servers
# kinds of modules -> classes of template_modules, in folders with mask pooling
_OWN = {"Pooling": "MaskPooling", "Denoise": "Denoise"}
_ONE_CONFIG = "sentence_bert_config.json"  # for every family, because it is the first name that is looked for


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
    whole = merged(encoder)
    return _published(path, lambda written: _write(whole, folder, written, head))


def save_joined(encoders: Sequence[TrainableEncoder], path: Path | str) -> EncoderFolder:
    """Save encoders whose vectors are concatenated, each in a folder of its own, and open the whole.

    Every job opens it as one encoder; other libraries refuse the whole, and load each part.

    Raises:
        ModelError: `path` exists, or the encoders read texts differently.
    """

    def write(written: Path) -> None:
        for name, encoder in zip(PARTS, encoders, strict=True):
            save_folder(encoder, encoder.folder, written / name)
        write_json(written / "config.json", DESCRIBED)

    return _published(path, write)


def _published(path: Path | str, write: Callable[[Path], None]) -> EncoderFolder:
    """Create the folder at `path` through `write`, and open it. It appears complete or not at all."""
    target = Path(path).absolute()
    if target.exists():
        raise ModelError(str(target), "a path that is free", "an existing one", "name another, or remove it")
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
    own = read_json(folder.beside_config(_ONE_CONFIG))
    own.pop("processing_kwargs", None)  # because its max_length takes precedence over max_seq_length
    own |= {"max_seq_length": folder.max_length, "do_lower_case": folder.lower}
    write_json(to / _ONE_CONFIG, own | ({ENDS_SENTENCES: True} if folder.ends_sentences else {}))
    write_json(to / "config_sentence_transformers.json", _prompts(folder))
    _write_modules(encoder, folder, to, head)


def _write_modules(
    encoder: TrainableEncoder, folder: EncoderFolder, to: Path, head: DenseModule | None
) -> None:
    pooling, layers = _layers(encoder, head)
    described = list(map(_described, layers))
    kinds = ["Transformer", "Pooling", *(kind for kind, _ in described)]
    names = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], start=1))]
    config = _pooling(pooling, encoder.backbone.width, folder.include_prompt)
    if folder.pooling == MASKED:
        config["mask"] = folder.tokenizer().mask  # position of the template's mask
    write_json(to / names[1] / "config.json", config)
    for layer, name, (_, own) in zip(layers, names[2:], described, strict=True):
        (to / name).mkdir()
        if own:
            write_json(to / name / "config.json", own)
            _save_tensors(layer.state_dict(), to / name / _WEIGHTS)
    types = [_MODULES + kind for kind in kinds]
    if (
        folder.pooling == MASKED
    ):  # not in sentence-transformers, which loads this module of the folder instead
        shutil.copyfile(template_modules.__file__, to / f"{OWN_MODULES}.py")
        types = [f"{OWN_MODULES}.{_OWN[kind]}" if kind in _OWN else _MODULES + kind for kind in kinds]
    entries = [
        {"idx": number, "name": str(number), "path": name, "type": kind}
        for number, (name, kind) in enumerate(zip(names, types, strict=True))
    ]
    write_json(to / "modules.json", entries)


def _write_template(encoder: TrainableEncoder, folder: EncoderFolder, to: Path) -> dict[str, Tensor]:
    """Make the tokenizer put texts into the template, and free vectors new words.

    Returns:
        The word table with the new words, by its name; empty without free vectors.
    """
    if folder.template is None:
        return {}
    if not isinstance(encoder, LearnedTemplate):
        wrap_tokenizer(to, *folder.tokenizer().around)
        return {}
    new = add_tokens(to, encoder.free)
    whole = tuple(encoder.translated(new).tolist())
    wrap_tokenizer(to, whole[: len(encoder.frame.prefix)], whole[len(encoder.frame.prefix) :])
    return {f"{WORDS_TABLE}.weight": encoder.words.with_rows_at(new)}


def _write_weights(
    encoder: TrainableEncoder, folder: EncoderFolder, to: Path, words: Mapping[str, Tensor]
) -> None:
    """Write the weights under the names of the checkpoint.

    Its other weights, such as a pooler, are not changed. `words` replaces the backbone's word table.
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
        written = file.name in _WRITTEN or file.match("sentence_*_config.json")
        if file.parent == Path(folder.transformer) and not written:
            shutil.copyfile(folder.file(name), to / file.name)


def _prompts(folder: EncoderFolder) -> dict[str, Any]:
    """Return config_sentence_transformers.json, with the prompts of the settings if they differ."""
    own = read_json(folder.path / "config_sentence_transformers.json") or {
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    plain = open_folder(EncoderSettings(path=str(folder.path)))
    if (plain.prompt, plain.query_prompt) == (folder.prompt, folder.query_prompt):
        return own
    return own | {
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
    # config_sentence_transformers.json has the dimensions of a cut
    layers = [layer for layer in layers if not isinstance(layer, CutModule)]
    return pooling, [layer for layer in (denoising, *layers, head) if layer is not None]


def _pooling(pooling: Sequence[str], width: int, include_prompt: bool) -> dict[str, Any]:
    """Return the config of the pooling.

    It has flags, which every version of sentence-transformers and servers read; or a list, if flags lose the
    order or if there is none.
    """
    config: dict[str, Any] = {"word_embedding_dimension": width, "include_prompt": include_prompt}
    if list(pooling) == [mode for mode in ST_FLAGS.values() if mode in pooling]:
        return config | {flag: mode in pooling for flag, mode in ST_FLAGS.items()}
    return config | {"pooling_mode": [POOLINGS[mode].st_name or mode for mode in pooling]}


def _described(layer: torch.nn.Module) -> tuple[str, dict[str, Any]]:
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
