"""The value of an encoder folder: its files, modules, pooling, prompts, limits and identity."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.folder.averaging import TokenAveraging
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.folder.modules import Module, Normalization, read_json
from pipeline.models.folder.word_vectors import load_sequences, load_words
from pipeline.models.spec.families import PACKED_FAMILIES, ROTARY_FAMILIES
from pipeline.text.tokens.listed_tokens import listed_tokens
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.static_tokens import load_model2vec, load_static
from pipeline.text.tokens.templates import apply_template
from pipeline.text.tokens.tokenizer_files import read_head
from pipeline.text.tokens.tokens import Side, Tokenizer

ENDS_SENTENCES = "ensure_final_punctuation"  # key that this project adds to sentence_bert_config.json
MASKED = ("mask",)  # pooling of encoders that read a template's mask token; never concatenated with others
JOINED = "manta-joined"  # model_type of a folder with several encoders
MODEL2VEC = "model2vec"  # model_type of a table of token vectors that model2vec wrote
SEQUENCE_FAMILIES = ("recurrent", "convolutional", "dan")  # encoders that read whole words in their order
# model types in which tokens see padding, by convolutions, averages of blocks, hashes or a Fourier transform,
# or whose attention is chosen by the padded length
_SEE_PADDING = (
    *("big_bird", "bigbird_pegasus", "canine", "convbert", "fnet", "funnel", "mobilebert", "nystromformer"),
    *("reformer", "yoso"),
)
_SCALED_BY_LENGTH = ("dynamic", "longrope", "su")  # kinds of rotary positions that depend on a text's length

# Model types, or classes of tokenizers, whose SentencePiece models transformers 5 reads as version 4 did.
# Other SentencePiece models give other tokens for some or all texts (compared on 909 texts with transformers
# 4.57).
_BUILT_ALIKE = (
    *("bertgeneration", "camembert", "longt5", "mt5", "plbart", "switchtransformers", "t5"),
    *("xlmroberta", "xlmrobertaxl", "xmod"),
)
# function that loads a tokenizer, by family or, for model2vec, by model_type; `load_tokenizer` loads all
# others
_LOADERS = {
    **dict.fromkeys(("words", "paragraph"), load_words),
    **dict.fromkeys(SEQUENCE_FAMILIES, load_sequences),
    "static": load_static,
    MODEL2VEC: load_model2vec,
}


@dataclass(frozen=True)
class EncoderFolder:
    """A resolved encoder: the contents of its folder with the overrides of the settings applied."""

    path: Path
    family: str
    """one of PACKED_FAMILIES for the packed forward pass; words for word vectors; static for a table of token
    vectors; paragraph for paragraph vectors; recurrent, convolutional or dan for an encoder of that kind;
    otherwise other"""
    dim: int
    max_length: int
    pooling: tuple[str, ...]
    """names of POOLINGS; several are concatenated"""
    include_prompt: bool
    """tokens of the prompt are pooled"""
    tail: tuple[Module, ...]
    """modules after the pooling, in order"""
    prompt: str
    query_prompt: str
    lower: bool
    """texts are lowercased"""
    truncation_side: Side
    """side of a text that is truncated if it has more than max_length tokens"""
    transformer: str
    """folder of config.json, relative to `path`; "" is the folder itself"""
    weights: tuple[str, ...]
    """weight files of the transformer, relative to `path`; an index comes after its files"""
    files: Mapping[str, str] = field(repr=False)
    """relative path -> sha256 of all files that loading needs; a copy of them is the same encoder"""
    config: Mapping[str, Any] = field(repr=False)
    averaging: TokenAveraging = field(default_factory=TokenAveraging)
    template: str | None = None
    """template that texts are put into, unless the folder's tokenizer does so itself"""
    pooling_weights: str | None = None
    """weights of the pooling ngrams, relative to `path`; None for other poolings, or if there are none"""
    ends_sentences: bool = False
    """a text without final punctuation gets a full stop"""
    similarity: str = "cosine"
    """similarity by which the folder's vectors are to be compared: cosine, dot, euclidean or manhattan"""
    parts: tuple["EncoderFolder", ...] = ()
    """encoders whose vectors are concatenated; empty for a single encoder. All of them read texts alike"""
    space_id: str = ""
    """hash of everything that must be equal for two vectors to be comparable"""

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer, with prompt and template.

        Raises:
            ModelError: it cannot be loaded, has tokens for which the model has no vector, or has no mask
                token for its template.
        """
        folder = self.transformer_path
        model_type = self.config.get("model_type")
        load = _LOADERS.get(MODEL2VEC if model_type == MODEL2VEC else self.family, load_tokenizer)
        tokenizer = replace(
            load(
                folder,
                self.max_length,
                prompt=self.prompt,
                lower=self.lower,
                truncation_side=self.truncation_side,
            ),
            ends_sentences=self.ends_sentences,
            keyed=self.family == "paragraph",
        )
        if self.family == "other" or self.family in PACKED_FAMILIES.values():
            self._check_vocabulary(tokenizer)
        self._check_types(tokenizer)
        is_masked = self.pooling == MASKED
        if not is_masked and self.template is None:
            return tokenizer
        return apply_template(tokenizer, folder, self.template, masked=is_masked)

    def _check_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Check that every token that plain text can have has a row in the word table.

        Special tokens are exempt: Gemma's tokenizer has a token for images, which has no row in models of
        texts.

        Raises:
            ModelError: tokens have no row; the message names the first ones and their number.
        """
        folder, rows = self.transformer_path, self.config.get("vocab_size")
        if not rows or (tokenizer.largest_id is not None and tokenizer.largest_id < rows):
            return
        beyond = {name: number for name, number in tokenizer.vocabulary().items() if number >= rows}
        special = {
            str(token.get("content"))
            for token in read_head(folder).get("added_tokens") or ()
            if token.get("special")
        }
        special |= {token.content for token in listed_tokens(folder) if token.special}
        used = {*tokenizer.prefix, *tokenizer.suffix}
        missing = sorted(name for name, number in beyond.items() if name not in special or number in used)
        if missing:
            shown = f"{', '.join(map(repr, missing[:3]))}{' ...' if len(missing) > 3 else ''}"
            raise ModelError(
                str(folder),
                f"a tokenizer whose tokens have ids below vocab_size {rows}",
                f"{len(missing)} tokens without a row in the word table: {shown}",
                "resize the model's word table (resize_token_embeddings), or remove these tokens",
            )

    def _check_types(self, tokenizer: Tokenizer) -> None:
        """Check that the model has the token types of its tokenizer. Raises ModelError if it has fewer."""
        rows = self.config.get("type_vocab_size")
        if tokenizer.types is None or not isinstance(rows, int):
            return
        largest = max(*tokenizer.types.prefix, tokenizer.types.text, *tokenizer.types.suffix)
        if largest >= max(rows, 1):
            raise ModelError(
                str(self.transformer_path / "tokenizer.json"),
                f"token types below {max(rows, 1)}, the type_vocab_size of config.json",
                f"type {largest} in its post_processor",
                "restore the file",
            )

    @property
    def whole_words(self) -> bool:
        """True if tokens are whole words, not pieces of words."""
        return self.family in ("words", "paragraph", *SEQUENCE_FAMILIES)

    @property
    def sees_padding(self) -> bool:
        """True if padding after a text would change its vector, although attention leaves it out."""
        return self.config.get("model_type") in _SEE_PADDING or scales_by_length(self.config)

    @property
    def holds_any_text(self) -> bool:
        """True if a text longer than encode.max_tokens may have a larger forward pass of its own."""
        return self.family in ("other", "static", *ROTARY_FAMILIES.values())

    @property
    def normalize(self) -> bool:
        """True if the vectors have length one."""
        return self.tail[-1:] == (Normalization(),)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about results that differ from those of the library that wrote the folder."""
        found = []
        is_cosine = self.similarity == "cosine" or (self.normalize and self.similarity != "manhattan")
        if not is_cosine:
            found.append(
                f"{self.path}: similarity_fn_name is {self.similarity}, but searches rank by cosine, which "
                "gives other results; use an encoder trained for cosine similarity"
            )
        if self._is_built_otherwise():
            found.append(
                f"{self.transformer_path}: without tokenizer.json, transformers 5 builds another tokenizer "
                "from the SentencePiece model than transformers 4; save tokenizer.json with the version that "
                "the encoder was trained with"
            )
        found += self._other_prompts()
        if any(map(self.pools_first_token, (self.prompt, self.query_prompt))):
            found.append(
                f"{self.path}: the prompt is not pooled, but the blank at its end is in each text's first "
                "token, which is pooled; sentence-transformers leaves that token out"
            )
        return tuple(found)

    def _other_prompts(self) -> Iterator[str]:
        """Yield sentences about prompts that are used although the folder has them under another name."""
        file = self.path / "config_sentence_transformers.json"
        stored = read_json(file).get("prompts") or {}
        for kind, text in (("document", self.prompt), ("query", self.query_prompt)):
            name = next((name for name, prompt in stored.items() if prompt == text and name != kind), None)
            if text and name and not stored.get(kind):
                yield (
                    f"{file}: each {kind} gets the prompt {name!r}, where encode_{kind} of "
                    f"sentence-transformers uses only one that is named {kind}, and finds none; name it so "
                    "if it is right, else set encoder.prompt and encoder.query_prompt"
                )

    def _is_built_otherwise(self) -> bool:
        """Return whether transformers 5 and 4 build different tokenizers from the SentencePiece model."""
        folder = self.transformer_path
        if (folder / "tokenizer.json").is_file() or not any(folder.glob("*.model")):
            return False
        name = read_json(folder / "tokenizer_config.json").get("tokenizer_class") or self.config.get(
            "model_type"
        )
        kind = str(name).removesuffix("Fast").removesuffix("Tokenizer").lower()
        return kind.replace("-", "").replace("_", "") not in _BUILT_ALIKE

    def pools_first_token(self, prompt: str) -> bool:
        """Return whether a text's first token is pooled although sentence-transformers counts it as part of
        the prompt.

        sentence-transformers tokenizes the prompt alone, where a blank at its end is a token; before a text,
        many tokenizers join that blank with the first word.
        """
        if self.include_prompt or not prompt.endswith(" "):
            return False
        return replace(self.tokenizer(), prompt=prompt).joins_blank

    def file(self, relative: str) -> Path:
        """Return the path of one of `files`. Word counts may be outside the folder; a copy includes them."""
        counts = self.averaging.counts
        return counts if counts and relative == FREQUENCIES else self.path / relative

    @property
    def transformer_path(self) -> Path:
        """Folder of config.json and the tokenizer."""
        return self.path / self.transformer


def scales_by_length(config: Mapping[str, Any]) -> bool:
    """Return whether the rotary positions of a model, or of some of its layers, depend on a text's length."""
    ropes = [config.get("rope_parameters"), config.get("rope_scaling")]
    kinds = (rope.get("rope_type", rope.get("type")) for rope in _mappings(ropes))
    return any(kind in _SCALED_BY_LENGTH for kind in kinds)


def _mappings(values: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings among some values, and the mappings inside them."""
    for value in values:
        if isinstance(value, Mapping):
            yield value
            yield from _mappings(value.values())
