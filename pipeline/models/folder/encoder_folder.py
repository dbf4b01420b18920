"""The value of an encoder folder: its files, modules, pooling, prompts, limits and identity."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.models.folder.averaging import Averages
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.folder.modules import Module
from pipeline.models.folder.word_vectors import load_sequences, load_words
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.templates import apply_template
from pipeline.text.tokens.tokens import Side, Tokenizer

ENDS_SENTENCES = "ensure_final_punctuation"  # our key among a folder's settings
MASKED = ("mask",)  # the pooling of encoders that read a template's mask token; it is not concatenated
JOINED = "manta-joined"  # model_type of a folder with several encoders
PACKED_FAMILIES = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "distilbert": "distilbert",
    "mpnet": "mpnet",
}
"""family by model_type"""


@dataclass(frozen=True)
class EncoderFolder:
    """A resolved encoder: the contents of its folder with the overrides of the settings applied."""

    path: Path
    family: str
    """bert, roberta, distilbert or mpnet for the packed forward pass, words for word vectors, recurrent for
    a recurrent encoder, else other"""
    dim: int
    max_length: int
    pooling: tuple[str, ...]
    """names of POOLINGS; several are concatenated"""
    include_prompt: bool
    tail: tuple[Module, ...]
    """modules after the pooling, in order"""
    prompt: str
    query_prompt: str
    lower: bool
    cuts: Side
    """side from which tokens that do not fit are removed"""
    transformer: str
    """folder of config.json, relative to `path`; "" is the folder itself"""
    weights: tuple[str, ...]
    files: Mapping[str, str] = field(repr=False)
    """relative path -> sha256 of all files that loading needs; a copy of them is the same encoder"""
    config: Mapping[str, Any] = field(repr=False)
    averages: Averages = field(default_factory=Averages)
    template: str | None = None
    """template that texts are put into, unless the folder's tokenizer does so itself"""
    ends_sentences: bool = False
    """whether a text without final punctuation gets a full stop"""
    parts: tuple["EncoderFolder", ...] = ()
    """encoders whose vectors are concatenated, if there are several; the fields above then hold for each"""
    space_id: str = ""

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer, with prompt and template.

        Raises:
            ModelError: it cannot be loaded, or has no mask token for its template.
        """
        folder = self.path / self.transformer
        load = {"words": load_words, "recurrent": load_sequences}.get(self.family, load_tokenizer)
        tokenizer = replace(
            load(folder, self.max_length, prompt=self.prompt, lower=self.lower, cuts=self.cuts),
            ends_sentences=self.ends_sentences,
        )
        masked = self.pooling == MASKED
        if not masked and self.template is None:
            return tokenizer
        return apply_template(tokenizer, folder, self.template, masked=masked)

    @property
    def whole_words(self) -> bool:
        """True if tokens are whole words, not pieces of words."""
        return self.family in ("words", "recurrent")

    @property
    def normalize(self) -> bool:
        """True if the vectors have length one."""
        return "normalize" in self.tail

    def file(self, relative: str) -> Path:
        """Path of one of `files`. Word counts may be stored outside; a copy of the encoder includes them."""
        counts = self.averages.counts
        return counts if counts and relative == FREQUENCIES else self.path / relative

    def beside_config(self, name: str) -> Path:
        """Path of a file of the transformer module, such as tokenizer.json."""
        return self.path / self.transformer / name
