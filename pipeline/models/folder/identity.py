"""Fill in the files, the dimension and the space_id of an opened encoder folder."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipeline.config import digest_of
from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.folder.modules import (
    OWN_MODULES,
    Denoising,
    Dense,
    Module,
    ModuleEntry,
    Normalization,
    Truncation,
    refuse_invalid,
)
from pipeline.models.folder.weight_files import path_inside
from pipeline.models.spec.pooling import POOLINGS
from pipeline.store.files.cache import digest_of_file
from pipeline.text.normalize import NORMALIZER_VERSION
from pipeline.text.tokens.listed_tokens import listed_tokens
from pipeline.text.tokens.tokenizer_files import (
    added_tokens,
    has_token_types,
    replaced_options,
    splits_special_tokens,
)

TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""names that sentence-transformers has given to the file of a Transformer module's settings"""
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
_WIDTHS = ("hidden_size", "dim", "d_model", "n_embd", "emb_dim")
"""keys of config.json with the width of the token states"""
# vocabularies of single families, from which transformers builds a tokenizer if there is no tokenizer.json
_OTHER_VOCABULARIES = (
    *("spm.model", "sentencepiece.model", "spm_char.model", "bpe.codes", "dict.txt"),
    *("prophetnet.tokenizer", "word_shape.json", "word_pronunciation.json", "entity_vocab.json"),
)
# keys of config.json that do not change vectors; the space_id leaves them out
_KEYS_WITHOUT_EFFECT = (
    "transformers_version",
    "_name_or_path",
    "torch_dtype",
    "dtype",
    "architectures",
    "use_cache",
    "gradient_checkpointing",
)


def with_identity(folder: EncoderFolder, modules: list[ModuleEntry]) -> EncoderFolder:
    """Fill in files, dimension and space_id.

    Raises:
        ModelError: config.json has no width, or a module expects another one.
    """
    width = pooled_width(folder)
    for module in folder.tail:
        width = _width_after(folder, module, width)
    complete = replace(
        folder,
        files={name: digest_of_file(folder.file(name)) for name in _needed_files(folder, modules)},
        dim=width,
    )
    return replace(complete, space_id=_space_id(complete))


def pooled_width(folder: EncoderFolder) -> int:
    """Return the dimension of the pooled vectors, before the modules after the pooling.

    Raises:
        ModelError: config.json has no width.
    """
    config = folder.config
    of_states = state_width(config)
    table_width = int(config.get("embedding_size") or of_states)
    # the pooling "table" averages rows of the word table, whose width may differ (ALBERT)
    width = sum(table_width if POOLINGS[name].layers is None else of_states for name in folder.pooling)
    if width == 0:
        raise ModelError(
            str(folder.transformer_path / "config.json"),
            f"the width of the token states as {', '.join(_WIDTHS[:-1])} or {_WIDTHS[-1]}",
            "none of them",
            "use an encoder of texts",
        )
    return width


def state_width(config: Mapping[str, Any]) -> int:
    """Return the width of the last hidden states; 0 if config.json has none."""
    width = int(next(filter(None, (config.get(name) for name in _WIDTHS)), 0))
    match config.get("model_type"):
        case "opt":  # OPT-350m projects its states to the width of its word table
            return int(config.get("word_embed_proj_dim") or width)
        case "reformer":  # its reversible layers have two streams
            return 2 * width
    return width


def _width_after(folder: EncoderFolder, module: Module, width: int) -> int:
    """Return the number of dimensions after a module, for vectors of `width` dimensions."""
    if isinstance(module, Normalization):
        return width
    if isinstance(module, Truncation):
        return min(width, module.width)
    if isinstance(module, Dense):
        inner, outer = module.in_features, module.out_features
    else:
        inner = outer = module.width
    if inner != width:
        raise ModelError(
            str(folder.file(module.weights)),
            f"in_features {width}, the dimension of the vectors before this module",
            str(inner),
            "restore the folder",
        )
    return outer


def _needed_files(folder: EncoderFolder, modules: list[ModuleEntry]) -> list[str]:
    """List the relative paths of the files that this project or sentence-transformers needs for loading."""
    names = {
        *(
            path_inside(folder.transformer, name)
            for name in ("config.json", *TRANSFORMER_CONFIGS, *_tokenizer_names(folder))
        ),
        *("modules.json", "config_sentence_transformers.json", f"{OWN_MODULES}.py"),
        *(path_inside(subfolder, "config.json") for _, subfolder in modules[1:]),
        *(module.weights for module in folder.tail if isinstance(module, Dense | Denoising)),
        *folder.weights,
        *([folder.pooling_weights] if folder.pooling_weights else []),
        # A training may read the counts that are stored with word vectors.
        *([FREQUENCIES] if folder.averaging.counts or folder.family == "words" else []),
    }
    return sorted(name for name in names if folder.file(name).is_file())


def _tokenizer_names(folder: EncoderFolder) -> tuple[str, ...]:
    """Return the names that files of a tokenizer can have."""
    has_all = (folder.transformer_path / "tokenizer.json").is_file()
    return _TOKENIZER_FILES if has_all else (*_TOKENIZER_FILES, *_OTHER_VOCABULARIES)


def _space_id(folder: EncoderFolder) -> str:
    """Hash everything that must be equal for two vectors to be comparable.

    If there is a tokenizer.json, other tokenizer files count only by the changes that they make to it.
    """
    tokenizer_files = [path_inside(folder.transformer, name) for name in _tokenizer_names(folder)]
    if tokenizer_files[0] in folder.files:  # tokenizer.json
        tokenizer_files = tokenizer_files[:1]
    added = added_tokens(folder.transformer_path)
    changes = {} if folder.family == "static" else _tokenizer_changes(folder)
    return digest_of(
        {
            "weights": [folder.files[name] for name in folder.weights],
            "config": {key: value for key, value in folder.config.items() if key not in _KEYS_WITHOUT_EFFECT},
            "tokenizer": [folder.files[name] for name in tokenizer_files if name in folder.files],
            "pooling": [*folder.pooling, folder.include_prompt],
            "tail": [module_identity(folder, module) for module in folder.tail],
            "prompt": folder.prompt,
            "lower": folder.lower,
            "max_length": folder.max_length,
            "truncation": folder.truncation_side,
            "normalizer": NORMALIZER_VERSION,
            "dim": folder.dim,
            **folder.averaging.identity(folder.files),
            **({"pooling_weights": folder.files[folder.pooling_weights]} if folder.pooling_weights else {}),
            **({"template": folder.template} if folder.template is not None else {}),
            **({"ends_sentences": True} if folder.ends_sentences else {}),
            **({"special_tokens": added} if added else {}),
            **changes,
            # vectors of earlier versions were computed from padded texts
            **({"padding": False} if folder.sees_padding else {}),
            **({"pools_first_token": True} if folder.pools_first_token(folder.prompt) else {}),
        }
    )


def _tokenizer_changes(folder: EncoderFolder) -> dict[str, Any]:
    """Return the changes that the files beside tokenizer.json make to it."""
    path = folder.transformer_path
    with refuse_invalid(path / "tokenizer.json", "a tokenizer that the tokenizers library reads"):
        options, tokens = replaced_options(path), [list(token) for token in listed_tokens(path)]
        return {
            **({"tokenizer_options": options} if options else {}),
            **({"listed_tokens": tokens} if tokens else {}),
            **({"split_special_tokens": True} if splits_special_tokens(path) else {}),
            **({"token_types": True} if has_token_types(path) else {}),
        }


def module_identity(folder: EncoderFolder, module: Module) -> Any:
    """Return the identity of a module: its weights, and settings that the weights do not contain."""
    if isinstance(module, Normalization):
        return "normalize"
    if isinstance(module, Truncation):
        return ["cut", module.width]
    weights = folder.files[module.weights]
    if isinstance(module, Dense):
        return [weights, module.activation, module.residual]
    return [weights, module.activation, module.epsilon, module.shortest]
