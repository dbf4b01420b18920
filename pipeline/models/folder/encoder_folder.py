"""The value of an encoder folder: its files, modules, pooling, prompts, limits and identity."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.models.folder.averaging import Averages
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.folder.modules import (
    Module,
)
from pipeline.models.folder.word_vectors import load_sequences, load_words
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.templates import apply_template
from pipeline.text.tokens.tokens import Side, Tokenizer

ENDS_SENTENCES = "ensure_final_punctuation"  # our name of it among a folder's settings

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


@dataclass(frozen=True)
class EncoderFolder:
    """A resolved encoder: what its folder says, with the overrides of the settings applied."""

    path: Path
    family: str
    """bert, roberta, distilbert or mpnet where the packed forward pass serves it, words for word vectors,
    recurrent for an encoder of words in their order, else other"""
    dim: int
    max_length: int
    pooling: tuple[str, ...]
    """names of POOLINGS; several are concatenated"""
    include_prompt: bool
    tail: tuple[Module, ...]
    """what follows the pooling, in order: Dense layers, "normalize", what is taken off a template's vectors,
    and a cut to fewer dimensions"""
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
    """encoders whose vectors stand side by side, where there are several; what is said here of the way to a
    vector is then said of each"""
    space_id: str = ""

    def tokenizer(self) -> Tokenizer:
        """Texts of the corpus to what the model reads.

        ModelError where it cannot be loaded, or has no mask token for its template.
        """
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
        """Where one of `files` lies.

        The word counts may lie elsewhere; a copy of the files has them beside the others.
        """
        return (
            self.averages.counts if relative == FREQUENCIES and self.averages.counts else self.path / relative
        )

    def beside_config(self, name: str) -> Path:
        """A file of the transformer module, such as tokenizer.json."""
        return self.path / self.transformer / name
