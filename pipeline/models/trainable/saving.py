"""A trained encoder becomes a folder that this project, sentence-transformers and embedding servers load as
it is.
"""

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
from pipeline.models.trainable.backbones import PaddedBackbone
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.lora import merged
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.models.trainable.soft_prompt import WORDS_TABLE, LearnedTemplate
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.templates import add_tokens, wrap_tokenizer

_WEIGHTS = "model.safetensors"
_WRITTEN = (
    "config.json",
    "modules.json",
    "config_sentence_transformers.json",
)  # of the files that loading needs; weights apart
_MODULES = (
    "sentence_transformers.models."  # where every version of that library, and servers, look for modules
)
_OWN = {
    "Pooling": "MaskPooling",
    "Denoise": "Denoise",
}  # classes in the module file that a folder has which reads a mask
_ONE_CONFIG = "sentence_bert_config.json"  # whatever the family; the first name that is looked for


def save_folder(
    encoder: TrainableEncoder, folder: EncoderFolder, path: Path | str, *, head: DenseModule | None = None
) -> EncoderFolder:
    """The new encoder folder at `path`, as opened from there: what `encoder` computes in eval(), in float32.

    Whole or not there at all.

    Adapters are added into the weights. A cls_mlp layer becomes a Dense module if nothing is concatenated
    with it. A pooling that sentence-transformers has no name for is written under ours, which that library
    refuses instead of computing something else; a template's mask it reads with trust_remote_code.

    Args:
        folder: folder that the encoder was loaded from, with the overrides of the settings. It gives config,
            tokenizer, prompts and max_length.
        head: an objective's head that inference keeps, as a Dense module at the end; None leaves no trace of
            one.

    Raises:
        ModelError: `path` exists.
    """
    whole = merged(encoder)
    return _published(path, lambda written: _write(whole, folder, written, head))


def save_joined(encoders: Sequence[TrainableEncoder], path: Path | str) -> EncoderFolder:
    """The new folder at `path` of two encoders whose vectors stand side by side, each in a folder of its own,
    made as `save_folder` does from where it came.

    Every job opens it as one encoder; other libraries refuse the whole, and load either part. ModelError
    where `path` exists, and for encoders that read texts differently.
    """

    def write(written: Path) -> None:
        for name, encoder in zip(PARTS, encoders, strict=True):
            save_folder(encoder, encoder.folder, written / name)
        _write_json(written / "config.json", DESCRIBED)

    return _published(path, write)


def _published(path: Path | str, write: Callable[[Path], None]) -> EncoderFolder:
    """The folder at `path` that `write` fills, as opened from there; whole or not there at all."""
    place = Path(path).absolute()
    if place.exists():
        raise ModelError(
            str(place), "a path that is free", "something is there", "name another path, or remove it"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as scratch:
        written = Path(scratch) / place.name
        written.mkdir()
        write(written)
        for file in written.rglob("*.safetensors"):
            file.chmod(
                (written / "config.json").stat().st_mode
            )  # safetensors writes for the owner alone; a server may be somebody else
        open_folder(EncoderSettings(path=str(written)))  # what cannot be loaded is not published
        written.rename(place)
    return open_folder(EncoderSettings(path=str(place)))


def _write(encoder: TrainableEncoder, folder: EncoderFolder, to: Path, head: DenseModule | None) -> None:
    _copy_tokenizer(folder, to)
    words = _write_template(encoder, folder, to)
    _write_weights(encoder, folder, to, words)
    changed: dict[str, Any] = {key: "float32" for key in ("dtype", "torch_dtype") if key in folder.config}
    if words:
        changed["vocab_size"] = max(map(len, words.values()))
    _write_json(to / "config.json", dict(folder.config) | changed)
    own = {
        key: value
        for key, value in read_json(folder.beside_config(_ONE_CONFIG)).items()
        if key != "processing_kwargs"
    }  # its max_length goes before ours
    ends = {ENDS_SENTENCES: True} if folder.ends_sentences else {}
    _write_json(
        to / _ONE_CONFIG, own | {"max_seq_length": folder.max_length, "do_lower_case": folder.lower} | ends
    )
    _write_json(to / "config_sentence_transformers.json", _prompts(folder))
    _write_modules(encoder, folder, to, head)


def _write_modules(
    encoder: TrainableEncoder, folder: EncoderFolder, to: Path, head: DenseModule | None
) -> None:
    pooling, layers = _layers(encoder, head)
    kinds = ["Transformer", "Pooling", *map(_kind, layers)]
    places = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], start=1))]
    _write_json(
        to / places[1] / "config.json",
        _pooling(pooling, encoder.backbone.width, folder.include_prompt) | _mask(folder),
    )
    for layer, name in zip(layers, places[2:], strict=True):
        (to / name).mkdir()
        if isinstance(layer, DenseModule):
            _write_dense(layer, to / name)
        elif isinstance(layer, DenoiseModule):
            _write_denoise(layer, to / name)
    types = [_MODULES + kind for kind in kinds]
    if (
        folder.pooling == MASKED
    ):  # that library has no name for it: it loads our own module, where its user trusts it
        shutil.copyfile(template_modules.__file__, to / f"{OWN_MODULES}.py")
        types = [
            f"{OWN_MODULES}.{_OWN[kind]}" if kind in _OWN else there
            for kind, there in zip(kinds, types, strict=True)
        ]
    entries = [
        {"idx": number, "name": str(number), "path": name, "type": kind}
        for number, (name, kind) in enumerate(zip(places, types, strict=True))
    ]
    _write_json(to / "modules.json", entries)


def _mask(folder: EncoderFolder) -> dict[str, int | None]:
    """Where the template's mask stands in a row."""
    return {"mask": folder.tokenizer().mask} if folder.pooling == MASKED else {}


def _write_template(encoder: TrainableEncoder, folder: EncoderFolder, to: Path) -> dict[str, Tensor]:
    """The tokenizer wraps texts by itself.

    Free vectors become new words: what comes back is the word table with them, by name; else nothing.
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
    """Under the names of the checkpoint; what it has beside the backbone (a pooler, say) stays as it was.
    words: a table that stands for the backbone's own.
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
    _save_tensors(
        {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}, to / _WEIGHTS
    )


def _save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    copies = {
        name: tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(copies, file, metadata={"format": "pt"})


def _copy_tokenizer(folder: EncoderFolder, to: Path) -> None:
    """And whatever else stands beside the configuration and loading needs."""
    for name in folder.files:
        file = Path(name)
        beside = file.parent == Path(folder.transformer) and name not in folder.weights
        if (
            beside
            and file.name not in _WRITTEN
            and not (file.name.startswith("sentence_") and file.name.endswith("_config.json"))
        ):
            shutil.copyfile(folder.file(name), to / file.name)


def _prompts(folder: EncoderFolder) -> dict[str, Any]:
    """As the folder has them; where the settings gave others, these."""
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
    """(pooling, what follows it) with the heads as Dense modules."""
    pooling, layers = encoder.folder.pooling, list(encoder.tail)
    if encoder.mlp is not None and pooling == ("cls_mlp",):
        pooling, layers = ("cls",), [encoder.mlp, *layers]
    if "cls_mlp" in pooling and mlp_name(open_checkpoint(encoder.folder)) is None:
        raise ModelError(
            "encoder.pooling",
            "cls_mlp by itself, since the encoder had no such layer",
            "+".join(pooling),
            "train with one pooling",
        )
    denoising = encoder.denoising() if isinstance(encoder, PromptedEncoder) else None
    layers = [
        layer for layer in layers if not isinstance(layer, CutModule)
    ]  # config_sentence_transformers.json says it
    return pooling, [layer for layer in (denoising, *layers, head) if layer is not None]


def _pooling(pooling: Sequence[str], width: int, include_prompt: bool) -> dict[str, Any]:
    """One flag for each mode, as every version of the library and every server reads it; a list where only
    that keeps the order, or has the name.
    """
    config: dict[str, Any] = {"word_embedding_dimension": width, "include_prompt": include_prompt}
    if list(pooling) == [mode for mode in ST_FLAGS.values() if mode in pooling]:
        return config | {flag: mode in pooling for flag, mode in ST_FLAGS.items()}
    return config | {"pooling_mode": [POOLINGS[mode].st_name or mode for mode in pooling]}


def _write_dense(layer: DenseModule, to: Path) -> None:
    described = layer.described
    kind = "linear.Identity" if described.activation == "Identity" else f"activation.{described.activation}"
    config = {
        "in_features": described.in_features,
        "out_features": described.out_features,
        "bias": described.bias,
        "activation_function": f"torch.nn.modules.{kind}",
    }
    _write_json(to / "config.json", config | ({"use_residual": True} if described.residual else {}))
    _save_tensors(dict(layer.named_parameters()), to / _WEIGHTS)


def _write_denoise(layer: DenoiseModule, to: Path) -> None:
    described = layer.described()
    config = {
        "width": described.width,
        "activation": described.activation,
        "epsilon": described.epsilon,
        "shortest": described.shortest,
    }
    _write_json(to / "config.json", config | {"longest": described.shortest + len(layer.table) - 1})
    _save_tensors(layer.state_dict(), to / _WEIGHTS)


def _kind(layer: torch.nn.Module) -> str:
    return (
        "Denoise"
        if isinstance(layer, DenoiseModule)
        else "Dense"
        if isinstance(layer, DenseModule)
        else "Normalize"
    )


def _write_json(file: Path, value: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
