"""Files, dimension and space_id of an encoder folder."""

from dataclasses import replace
from typing import Any

from pipeline.config import digest_of
from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.folder.modules import OWN_MODULES, Cut, Denoising, Dense, Module
from pipeline.models.folder.weight_files import joined
from pipeline.models.layers.pooling import POOLINGS
from pipeline.store.cache import digest_of_file
from pipeline.text.corpus.normalize import NORMALIZER_VERSION
from pipeline.text.tokens.load_tokenizer import added_tokens

TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""names that sentence-transformers gave to the settings of a Transformer module"""
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


def with_identity(folder: EncoderFolder, modules: list[tuple[str, str]]) -> EncoderFolder:
    """Fill in files, dimension and space_id.

    Raises:
        ModelError: config.json has no width, or a module was made for another one.
    """
    config = folder.config
    states = int(config.get("hidden_size") or config.get("dim") or config.get("d_model") or 0)
    table = int(config.get("embedding_size") or states)
    width = sum(table if POOLINGS[name].layers is None else states for name in folder.pooling)
    if width == 0:
        raise ModelError(
            str(folder.beside_config("config.json")),
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
    """Dimensions after a module for vectors of `width` dimensions."""
    if isinstance(module, str):
        return width
    if isinstance(module, Cut):
        return min(width, module.width)
    if isinstance(module, Dense):
        taken, given = module.in_features, module.out_features
    else:
        taken = given = module.width
    if taken != width:
        raise ModelError(
            str(folder.file(module.weights)),
            f"in_features {width}, as the module before gives",
            str(taken),
            "restore the folder",
        )
    return given


def _needed(folder: EncoderFolder, modules: list[tuple[str, str]]) -> list[str]:
    """Relative paths of the files that loading needs, here and in sentence-transformers."""
    names = {
        *(
            joined(folder.transformer, name)
            for name in ("config.json", *TRANSFORMER_CONFIGS, *_TOKENIZER_FILES)
        ),
        *("modules.json", "config_sentence_transformers.json", f"{OWN_MODULES}.py"),
        *(joined(sub, "config.json") for _, sub in modules[1:]),
        *(module.weights for module in folder.tail if isinstance(module, Dense | Denoising)),
        *folder.weights,
        *([FREQUENCIES] if folder.averages.counts else []),
    }
    return sorted(name for name in names if folder.file(name).is_file())


def _space_id(folder: EncoderFolder) -> str:
    """Hash everything that must be equal for two vectors to be comparable.

    If there is a tokenizer.json, it is the only tokenizer file that is read.
    """
    tokenizer = [joined(folder.transformer, name) for name in _TOKENIZER_FILES]
    present = [name for name in tokenizer if name in folder.files]
    tokenizer = present[:1] if present[:1] == tokenizer[:1] else present
    added = added_tokens(folder.path / folder.transformer)
    return digest_of(
        {
            "weights": [folder.files[name] for name in folder.weights],
            "config": {key: value for key, value in folder.config.items() if key not in _NOT_ARITHMETIC},
            "tokenizer": [folder.files[name] for name in tokenizer],
            "pooling": [*folder.pooling, folder.include_prompt],
            "tail": [_identity(folder, module) for module in folder.tail],
            "prompt": folder.prompt,
            "lower": folder.lower,
            "max_length": folder.max_length,
            "truncation": folder.cuts,
            "normalizer": NORMALIZER_VERSION,
            "dim": folder.dim,
            **folder.averages.identity(folder.files),
            **({"template": folder.template} if folder.template is not None else {}),
            **({"ends_sentences": True} if folder.ends_sentences else {}),
            **({"special_tokens": added} if added else {}),
        }
    )


def _identity(folder: EncoderFolder, module: Module) -> Any:
    """Identity of a module: its weights, and settings that the weights do not contain."""
    if isinstance(module, str):
        return module
    if isinstance(module, Cut):
        return ["cut", module.width]
    weights = folder.files[module.weights]
    if isinstance(module, Dense):
        return [weights, module.activation, module.residual]
    return [weights, module.activation, module.epsilon, module.shortest]
