"""Files, dimension and space_id of an encoder folder."""

from dataclasses import replace
from typing import Any

from pipeline.config import digest_of
from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.folder.modules import (
    OWN_MODULES,
    Cut,
    Denoising,
    Dense,
    Module,
)
from pipeline.models.folder.weight_files import joined
from pipeline.models.layers.pooling import POOLINGS
from pipeline.store.cache import digest_of_file
from pipeline.text.tokens.load_tokenizer import added_tokens

TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)


_NOT_ARITHMETIC = (
    "transformers_version",
    "_name_or_path",
    "torch_dtype",
    "dtype",
    "architectures",
    "use_cache",
    "gradient_checkpointing",
)


def identified(folder: EncoderFolder, modules: list[tuple[str, str]]) -> EncoderFolder:
    """The folder with files, dimension and space_id filled in."""
    states = int(
        folder.config.get("hidden_size") or folder.config.get("dim") or folder.config.get("d_model") or 0
    )
    width = sum(
        int(folder.config.get("embedding_size") or states) if POOLINGS[name].layers is None else states
        for name in folder.pooling
    )
    if width == 0:
        where = str(folder.beside_config("config.json"))
        raise ModelError(
            where,
            "the width of the token states as hidden_size, dim or d_model",
            "none of them",
            "use an encoder of texts",
        )
    for module in folder.tail:
        width = _width_after(folder, module, width)
    whole = replace(
        folder,
        files={name: digest_of_file(folder.file(name)) for name in _needed(folder, modules)},
        dim=width,
    )
    return replace(whole, space_id=_space_id(whole))


def _width_after(folder: EncoderFolder, module: Module, width: int) -> int:
    """Dimensions behind a module that gets `width`; ModelError if it was made for another number."""
    if isinstance(module, str):
        return width
    if isinstance(module, Cut):
        return min(width, module.width)
    taken, given = (
        (module.in_features, module.out_features)
        if isinstance(module, Dense)
        else (module.width, module.width)
    )
    if taken != width:
        raise ModelError(
            str(folder.file(module.weights)),
            f"in_features {width}, as the module before gives",
            str(taken),
            "restore the folder",
        )
    return given


def _needed(folder: EncoderFolder, modules: list[tuple[str, str]]) -> list[str]:
    """Relative paths of what loading this folder needs, here and in sentence-transformers."""
    beside = [
        joined(folder.transformer, name) for name in ("config.json", *TRANSFORMER_CONFIGS, *_TOKENIZER_FILES)
    ]
    configs = [
        "modules.json",
        "config_sentence_transformers.json",
        f"{OWN_MODULES}.py",
        *(joined(sub, "config.json") for _, sub in modules[1:]),
    ]
    layers = [module.weights for module in folder.tail if isinstance(module, Dense | Denoising)]
    counts = [FREQUENCIES] if folder.averages.counts else []
    return sorted(
        name for name in {*beside, *configs, *layers, *folder.weights, *counts} if folder.file(name).is_file()
    )


def _space_id(folder: EncoderFolder) -> str:
    """What makes two vectors comparable.

    Of tokenizer files the tokenizer.json alone where there is one: nothing else is read then.
    """
    from pipeline.text.corpus.normalize import NORMALIZER_VERSION

    tokenizer = [joined(folder.transformer, name) for name in _TOKENIZER_FILES]
    present = [name for name in tokenizer if name in folder.files]
    tokenizer = present[:1] if present[:1] == tokenizer[:1] else present
    tail = [_identity(folder, module) for module in folder.tail]
    template = {"template": folder.template} if folder.template is not None else {}
    ends = {"ends_sentences": True} if folder.ends_sentences else {}
    added = added_tokens(folder.path / folder.transformer)
    special = {"special_tokens": added} if added else {}
    return digest_of(
        {
            "weights": [folder.files[name] for name in folder.weights],
            "config": {key: value for key, value in folder.config.items() if key not in _NOT_ARITHMETIC},
            "tokenizer": [folder.files[name] for name in tokenizer],
            "pooling": [*folder.pooling, folder.include_prompt],
            "tail": tail,
            "prompt": folder.prompt,
            "lower": folder.lower,
            "max_length": folder.max_length,
            "truncation": folder.cuts,
            "normalizer": NORMALIZER_VERSION,
            "dim": folder.dim,
            **folder.averages.identity(folder.files),
            **template,
            **ends,
            **special,
        }
    )


def _identity(folder: EncoderFolder, module: Module) -> Any:
    """What distinguishes a module from others: its weights, and what these do not say."""
    if isinstance(module, str):
        return module
    if isinstance(module, Cut):
        return ["cut", module.width]
    form = (
        [module.activation, module.residual]
        if isinstance(module, Dense)
        else [module.activation, module.epsilon, module.shortest]
    )
    return [folder.files[module.weights], *form]
