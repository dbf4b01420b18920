"""What an encoder folder says: its files, modules, pooling, prompts, limits and identity. Imports neither torch nor transformers."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.config import digest_of
from pipeline.errors import ModelError
from pipeline.models.folder.averaging import Averages, averages_of
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.folder.locate import locate
from pipeline.models.folder.modules import (
    OWN_MODULES,
    POOLINGS,
    Cut,
    Denoise,
    Dense,
    Module,
    check_inside,
    check_numbers,
    modules_of,
    pooling_of,
    read_config,
    read_json,
    tail_of,
)
from pipeline.models.folder.pretrained import check_code
from pipeline.models.folder.word_vectors import RECURRENT, WORDS, load_sequences, load_words
from pipeline.settings import EncoderSettings
from pipeline.store.cache import digest_of_file
from pipeline.text.tokens.load_tokenizer import added_tokens, load_tokenizer
from pipeline.text.tokens.templates import apply_template
from pipeline.text.tokens.tokens import Side, Tokenizer

ENDS_SENTENCES = "ensure_final_punctuation"  # our name of it among a folder's settings
OF_RECURRENT = (
    "last",
    "ends",
    "max",
    "mean",
    "sqrt_len",
    "weighted_mean",
    "table",
)  # its layers are as wide as each other, its words are not
MASKED = ("mask",)  # the state of one token: it stands by itself
JOINED = "manta-joined"  # the model_type of a folder with several encoders in it
PACKED_FAMILIES = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "distilbert": "distilbert",
    "mpnet": "mpnet",
}
_TRANSFORMER_CONFIGS = tuple(
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
_DOCUMENT_PROMPTS = (
    "document",
    "passage",
    "corpus",
)  # as sentence-transformers' `encode_document` looks for them
_LEFT_TRUNCATION = re.compile(rb'"truncation":\s*\{[^{}]*"direction":\s*"Left"')
_NO_LIMIT = 1_000_000  # tokenizers without a limit write 1e30
_NOT_ARITHMETIC = (
    "transformers_version",
    "_name_or_path",
    "torch_dtype",
    "dtype",
    "architectures",
    "use_cache",
    "gradient_checkpointing",
)


@dataclass(frozen=True)
class EncoderFolder:
    """A resolved encoder: what its folder says, with the overrides of the settings applied."""

    path: Path
    family: str
    """bert, roberta, distilbert or mpnet where the packed forward pass serves it, words for word vectors, recurrent for an encoder of words
    in their order, else other"""
    dim: int
    max_length: int
    pooling: tuple[str, ...]
    """names of POOLINGS; several are concatenated"""
    include_prompt: bool
    tail: tuple[Module, ...]
    """what follows the pooling, in order: Dense layers, "normalize", what is taken off a template's vectors, and a cut to fewer dimensions"""
    prompt: str
    query_prompt: str
    lower: bool
    cuts: Side
    """where a text that is too long is cut"""
    transformer: str
    """where config.json lies, relative to `path`; "" is the folder itself"""
    weights: tuple[str, ...]
    files: Mapping[str, str] = field(repr=False)
    """relative path -> sha256 of everything that loading needs: a copy of these files is the same encoder"""
    config: Mapping[str, Any] = field(repr=False)
    averages: Averages = field(default_factory=Averages)
    template: str | None = None
    """what texts are put into, where the tokenizer of the folder does not do so by itself"""
    ends_sentences: bool = False
    """whether a text without a final sign gets a full stop"""
    parts: tuple["EncoderFolder", ...] = ()
    """encoders whose vectors stand side by side, where there are several; what is said here of the way to a vector is then said of each"""
    space_id: str = ""

    def tokenizer(self) -> Tokenizer:
        """Texts of the corpus to what the model reads. ModelError where it cannot be loaded, or has no mask token for its template."""
        place, load = (
            self.path / self.transformer,
            {"words": load_words, "recurrent": load_sequences}.get(self.family, load_tokenizer),
        )
        plain = replace(
            load(place, self.max_length, prompt=self.prompt, lower=self.lower, cuts=self.cuts),
            ends_sentences=self.ends_sentences,
        )
        masked = self.pooling == MASKED
        return (
            apply_template(plain, place, self.template, masked=masked)
            if masked or self.template is not None
            else plain
        )

    @property
    def whole_words(self) -> bool:
        """Whether its tokens are words, not pieces of them."""
        return self.family in ("words", "recurrent")

    @property
    def normalize(self) -> bool:
        """Whether the vectors have length one."""
        return "normalize" in self.tail

    def file(self, relative: str) -> Path:
        """Where one of `files` lies. The word counts may lie elsewhere; a copy of the files has them beside the others."""
        return (
            self.averages.counts if relative == FREQUENCIES and self.averages.counts else self.path / relative
        )

    def beside_config(self, name: str) -> Path:
        """A file of the transformer module, such as tokenizer.json."""
        return self.path / self.transformer / name


def open_folder(settings: EncoderSettings) -> EncoderFolder:
    """The encoder that `settings` mean; ModelError names file, expected and found where it cannot be used."""
    path = locate(settings.path)
    if read_json(path / "config.json").get("model_type") == JOINED:
        from pipeline.models.folder.concatenated import open_joined  # which opens each part by this function

        return open_joined(path, settings)
    modules = modules_of(path)
    transformer = modules[0][1] if modules else ""
    config = read_config(path / transformer)
    check_code(path / transformer)
    if config.get("model_type") in PACKED_FAMILIES:
        check_numbers(path / transformer / "config.json", config)
    own = _transformer_settings(path / transformer)
    pooling, include_prompt = pooling_of(path, modules)
    tail = tuple(tail_of(path, modules, settings.normalize))
    prompts = read_json(path / "config_sentence_transformers.json")
    prompt, query_prompt = _prompts(prompts, settings, path)
    folder = EncoderFolder(
        path=path,
        transformer=transformer,
        config=config,
        family=_family(config),
        tail=tail,
        prompt=prompt,
        query_prompt=query_prompt,
        pooling=_checked_pooling(settings, pooling),
        include_prompt=include_prompt or settings.pooling is not None or settings.template is not None,
        max_length=_max_length(path / transformer, config, own, settings.max_length),
        lower=bool(own.get("do_lower_case")),
        cuts=_cuts(path / transformer),
        template=settings.template,
        ends_sentences=settings.ensure_final_punctuation or bool(own.get(ENDS_SENTENCES)),
        dim=0,
        weights=weights_of(path, transformer),
        files={},
    )
    _check_template(folder, settings)
    _check_recurrent(folder)
    averages = averages_of(
        settings, path, str(config.get("model_type")), folder.pooling, words=folder.family == "words"
    )
    return _identified(replace(folder, averages=averages), modules)


def _transformer_settings(folder: Path) -> dict[str, Any]:
    """max_seq_length and do_lower_case, under whichever of its historic names the file lies there."""
    own = next((read for name in _TRANSFORMER_CONFIGS if (read := read_json(folder / name))), {})
    if (task := own.get("transformer_task", "feature-extraction")) != "feature-extraction":
        raise ModelError(
            str(folder), "a Transformer module for feature-extraction", repr(task), "use an encoder of texts"
        )
    return own


def _checked_pooling(settings: EncoderSettings, own: tuple[str, ...]) -> tuple[str, ...]:
    """`mean`, or several concatenated: `mean+max`. A template's mask where the settings say nothing else, else the folder's own."""
    if settings.pooling is None:
        return MASKED if settings.template is not None else own
    pooling = tuple(name.strip() for name in settings.pooling.split("+"))
    for name in pooling:
        if name not in POOLINGS:
            near = difflib.get_close_matches(name, POOLINGS, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else "choose one; a + between two concatenates them"
            raise ModelError("encoder.pooling", f"one of {', '.join(POOLINGS)}", repr(name), remedy)
    return pooling


def _check_template(folder: EncoderFolder, settings: EncoderSettings) -> None:
    """Templates are for models with a mask token, whose state stands by itself; what is taken off such vectors belongs to no other ones."""
    pooling = "+".join(folder.pooling)
    if "mask" in folder.pooling and folder.pooling != MASKED:
        raise ModelError("encoder.pooling", "mask by itself", pooling, "choose mask, or poolings without it")
    if folder.template is not None and folder.whole_words:
        raise ModelError(
            "encoder.template",
            "a model with a mask token",
            f"an encoder of words at {settings.path}",
            "set it to null",
        )
    if folder.template is not None and settings.exclude:
        found = ", ".join(settings.exclude)
        raise ModelError(
            "encoder.exclude",
            "nothing beside encoder.template, whose tokens would be left out of texts too",
            found,
            "use one of both",
        )
    if folder.pooling != MASKED and any(isinstance(module, Denoise) for module in folder.tail):
        raise ModelError(
            "encoder.pooling",
            "mask, whose vectors the folder's Denoise module is made for",
            pooling,
            "set it to null",
        )


def _check_recurrent(folder: EncoderFolder) -> None:
    """Two directions end at two places of a text; nothing else has them."""
    pooling, recurrent = "+".join(folder.pooling), folder.family == "recurrent"
    if recurrent and not set(folder.pooling) <= set(OF_RECURRENT):
        raise ModelError(
            "encoder.pooling",
            f"one of {', '.join(OF_RECURRENT)} for a recurrent encoder",
            pooling,
            "choose one of these",
        )
    if recurrent and folder.config.get("contexts") and folder.pooling != ("mean",):
        raise ModelError(
            "encoder.pooling",
            "mean, which the encoder's weights of words are made for",
            pooling,
            "set it to null",
        )
    if "ends" in folder.pooling and folder.config.get("directions") != 2:
        raise ModelError(
            "encoder.pooling",
            "an encoder of two directions for ends, the final state of each",
            pooling,
            "choose last, mean or max",
        )


def _prompts(config: dict[str, Any], settings: EncoderSettings, path: Path) -> tuple[str, str]:
    """(prompt of the corpus, prompt of queries): as sentence-transformers' `encode_document` and `encode_query` choose them.

    A folder with prompts for both gets both; else the corpus gets the default prompt or none. A prompt in the settings replaces the folder's pair.
    """
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if default is not None and default not in prompts:
        where = str(path / "config_sentence_transformers.json")
        raise ModelError(
            where,
            f"default_prompt_name among {', '.join(prompts) or 'no prompts'}",
            repr(default),
            "restore the file",
        )
    own_query = prompts.get("query") if settings.prompt is None else None
    document = (
        next((prompts[name] for name in _DOCUMENT_PROMPTS if prompts.get(name)), None) if own_query else None
    )
    prompt = (
        settings.prompt
        if settings.prompt is not None
        else document
        if document is not None
        else prompts.get(default, "")
    )
    if settings.query_prompt is not None:
        return prompt, settings.query_prompt
    return prompt, own_query or prompt


def _family(config: dict[str, Any]) -> str:
    """Whether the packed pass computes exactly this model; what is unusual takes the padded pass."""
    activation = config.get("activation", config.get("hidden_act", "gelu"))
    usual = (
        config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder")
        and activation in ("gelu", "relu", "gelu_new")
        and not config.get("quantization_config")
    )
    if own := {WORDS: "words", RECURRENT: "recurrent"}.get(str(config.get("model_type"))):
        return own
    return PACKED_FAMILIES.get(str(config.get("model_type")), "other") if usual else "other"


def positions_of(config: Mapping[str, Any]) -> int:
    """How many tokens a model has positions for."""
    positions = int(config.get("max_position_embeddings") or config.get("n_positions") or _NO_LIMIT)
    if PACKED_FAMILIES.get(str(config.get("model_type"))) in ("roberta", "mpnet"):
        positions -= int(config.get("pad_token_id", 1)) + 1  # their positions start behind the padding index
    return positions


def _max_length(folder: Path, config: dict[str, Any], own: dict[str, Any], wanted: int | None) -> int:
    """Tokens of one text: what the settings want, else the sentence-transformers limit, else the tokenizer's, never above the positions there are."""
    positions = positions_of(config)
    calls = own.get("processing_kwargs") or {}  # arguments of the tokenizer's call: these come after the rest
    called = (calls.get("text") or {}).get("max_length") or (calls.get("common") or {}).get("max_length")
    named = (
        called
        or own.get("max_seq_length")
        or read_json(folder / "tokenizer_config.json").get("model_max_length")
        or _NO_LIMIT
    )
    limit = min(int(min(named, _NO_LIMIT)), positions)
    if limit >= _NO_LIMIT:
        limit = wanted or 512  # neither file names a limit: 512, as the models of this kind were trained with
    if wanted is None:
        return limit
    if wanted > positions:
        raise ModelError(
            "encoder.max_length", f"at most the {positions} positions of the model", str(wanted), "lower it"
        )
    return wanted


def _cuts(folder: Path) -> Side:
    """As transformers decides: tokenizer_config.json, else what stands at the head of tokenizer.json; that file can have many megabytes."""
    named = read_json(folder / "tokenizer_config.json").get("truncation_side")
    if named not in (None, "left", "right"):
        raise ModelError(
            str(folder / "tokenizer_config.json"),
            "truncation_side left or right",
            repr(named),
            "restore the file",
        )
    if named is None and (folder / "tokenizer.json").is_file():
        with (folder / "tokenizer.json").open("rb") as file:
            named = "left" if _LEFT_TRUNCATION.search(file.read(2_048)) else "right"
    return "start" if named == "left" else "end"


def weights_of(path: Path, transformer: str) -> tuple[str, ...]:
    """Weight files, relative to the folder: safetensors before .bin, one file before an index of several."""
    for name in (
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
    ):
        file = path / transformer / name
        if not file.is_file():
            continue
        if not name.endswith(".index.json"):
            return (_joined(transformer, name),)
        parts = _parts(file)
        if missing := [part for part in parts if not (file.parent / part).is_file()]:
            raise ModelError(
                str(file), "every file of its weight_map", f"no {missing[0]}", "restore the file"
            )
        return (*(_joined(transformer, part) for part in parts), _joined(transformer, name))
    raise ModelError(
        str(path / transformer),
        "weights in model.safetensors or pytorch_model.bin",
        "neither",
        "give a folder with weights",
    )


def _parts(index: Path) -> list[str]:
    """Files that an index of weights names, relative to its folder."""
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise ModelError(
            str(index), "a weight_map from tensors to files", repr(named)[:80], "restore the file"
        )
    check_inside(index, named.values())
    return sorted(set(named.values()))


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _identified(folder: EncoderFolder, modules: list[tuple[str, str]]) -> EncoderFolder:
    """The folder with files, dimension and space_id filled in."""
    states = int(
        folder.config.get("hidden_size") or folder.config.get("dim") or folder.config.get("d_model") or 0
    )
    width = sum(
        int(folder.config.get("embedding_size") or states) if name == "table" else states
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
        _joined(folder.transformer, name)
        for name in ("config.json", *_TRANSFORMER_CONFIGS, *_TOKENIZER_FILES)
    ]
    configs = [
        "modules.json",
        "config_sentence_transformers.json",
        f"{OWN_MODULES}.py",
        *(_joined(sub, "config.json") for _, sub in modules[1:]),
    ]
    layers = [module.weights for module in folder.tail if isinstance(module, Dense | Denoise)]
    counts = [FREQUENCIES] if folder.averages.counts else []
    return sorted(
        name for name in {*beside, *configs, *layers, *folder.weights, *counts} if folder.file(name).is_file()
    )


def _space_id(folder: EncoderFolder) -> str:
    """What makes two vectors comparable. Of tokenizer files the tokenizer.json alone where there is one: nothing else is read then."""
    from pipeline.text.corpus.normalize import NORMALIZER_VERSION

    tokenizer = [_joined(folder.transformer, name) for name in _TOKENIZER_FILES]
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
