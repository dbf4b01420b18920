"""Settings of variants of a corpus's texts: how they are made, and which of them are kept."""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from pipeline.config import Settings, ShortSettings

Share = Annotated[float, Field(ge=0, le=1)]
_RESERVED = ("id", "text", "text_key")


class KeepSettings(Settings):
    """Which variants are kept.

    What is not keeps its text and its reason beside it; null switches a test off. Texts are compared as
    Unicode NFKC, case folded, punctuation left out, white space as one blank; a variant of which nothing is
    left so, while something is of its text, is never kept: reason empty.
    """

    identical: bool = False
    """whether a variant equal to its text stays; reason identical"""
    duplicates: bool = False
    """whether a variant equal to a kept one before it in its row stays; reason duplicate"""
    length_ratio: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)]] | None = (0.5, 2.0)
    """least and highest length in characters over that of the text; reasons too_short, too_long"""
    repeats: Annotated[int, Field(ge=1)] | None = 2
    """times that any run of `repeat_words` words may occur, or as often as one does in the text; and a word
    follows itself, no punctuation between, no more often than words do there. Words are what white space and
    punctuation part; reason repetition"""
    repeat_words: Annotated[int, Field(ge=1)] = 3
    """words of such a run"""
    language: str | None = None
    """ISO 639-1 code of the language that variants have to be in (extra `augment`); reason language"""
    languages: tuple[str, ...] = ()
    """languages that a variant may be taken for, `language` among them: that of the texts and those of the
    models; none: all that are known, which short texts confuse"""
    similarity: tuple[Annotated[float, Field(ge=-1, le=1)], Annotated[float, Field(ge=-1, le=1)]] | None = (
        None
    )
    """least and highest cosine of a variant with its text, by the job's encoder; reasons unlike, alike"""

    @model_validator(mode="after")
    def _bounds_rise(self) -> Self:
        for name in ("length_ratio", "similarity"):
            bounds = getattr(self, name)
            if bounds is not None and not bounds[0] < bounds[1]:
                raise ValueError(f"{name} to rise: {bounds[0]:g}, {bounds[1]:g} does not")
        if self.language is not None and self.languages and self.language not in self.languages:
            raise ValueError(f"languages to hold {self.language!r}, the one that is asked for")
        return self


class DecodingSettings(Settings):
    """Search for a translation."""

    method: Literal["greedy", "beam", "sample"] = "greedy"
    """the likeliest token at each place, the best of `beams` beginnings, or a token drawn by its probability
    """
    beams: Annotated[int, Field(ge=2)] = 4
    """beginnings that a beam search follows"""
    length_penalty: float = 1.0
    """of a beam search: above 0 it favours long translations, below 0 short ones"""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """of sampling: logits are divided by it"""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """of sampling: drawn among the fewest tokens that have this probability together (Holtzman et al. 2020)
    """
    top_k: Annotated[int, Field(ge=1)] | None = None
    """of sampling: drawn among so many of the likeliest tokens; 10 is restricted sampling (Edunov et al.
    2018); null: all"""
    hypotheses: Annotated[int, Field(ge=1)] = 1
    """translations of each text: samples, or the best of a beam search"""
    max_ratio: Annotated[float, Field(gt=0)] = 2.0
    """tokens of a translation at most, as a multiple of its source's tokens, and"""
    max_extra: Annotated[int, Field(ge=0)] = 10
    """so many more"""
    min_ratio: Annotated[float, Field(ge=0)] = 0.0
    """tokens of a translation at least, as a multiple of its source's tokens"""

    @model_validator(mode="after")
    def _hypotheses_can_be(self) -> Self:
        if self.hypotheses > (
            most := {"greedy": 1, "beam": self.beams, "sample": self.hypotheses}[self.method]
        ):
            raise ValueError(f"hypotheses to be at most {most} with {self.method}, not {self.hypotheses}")
        if self.min_ratio > self.max_ratio:
            raise ValueError(
                f"min_ratio to be at most max_ratio, not {self.min_ratio:g} and {self.max_ratio:g}"
            )
        return self


class ModelSettings(ShortSettings):
    """A model, and what Ray sets aside for a worker that runs it."""

    path: str
    """a folder, a URI of one, or a hub id"""
    batch_tokens: Annotated[int, Field(ge=16)] | None = None
    """source tokens of one batch, padding included; null: 2,048 on a CPU, 16,384 on a GPU"""
    workers: Annotated[int, Field(ge=1)] | None = None
    """of its pool; null: as cluster.workers"""
    cpus_per_worker: Annotated[float, Field(gt=0)] | None = None
    """null: as cluster.cpus_per_worker"""
    gpus_per_worker: Annotated[float, Field(ge=0)] | None = None
    """null: as cluster.gpus_per_worker"""


class TranslatorSettings(ModelSettings):
    """A sequence-to-sequence model: Marian (opus-mt), M2M100, NLLB, mBART, T5 or whatever transformers loads
    as one.
    """

    source: str | None = None
    """language of what it reads, as its tokenizer names it: en (M2M100), eng_Latn (NLLB), en_XX (mBART); null
    where the model has one alone"""
    target: str | None = None
    """language of what it writes: its token is forced to be the first one; null where the model has one alone
    """
    prefix: str = ""
    """put before every text: >>fra<< and a blank for a Marian model of several languages, or "translate
    English to German: " for T5"""
    max_length: Annotated[int, Field(ge=4)] | None = None
    """source tokens of a text, special tokens included; null: as many as the model takes. A longer text is
    not translated; reason too_long_for_model"""
    decoding: DecodingSettings = DecodingSettings()


class VariantSettings(ShortSettings):
    """An augmenter with its options. A plain name is one with its defaults."""

    method: str
    """as in pipeline/augment"""
    options: dict[str, JsonValue] = {}
    """of the method: see its class"""
    keep: KeepSettings | None = None
    """null: augment.keep"""


class AugmentSettings(Settings):
    """Variants of the corpus's texts, by name."""

    name: str = "main"
    """of the folder below augmented/ of release.root in which each run that found something new leaves a
    numbered manifest"""
    variants: dict[str, VariantSettings] = {}
    """name -> method, or {method, options, keep}. Each becomes the columns variant_<name>, rejected_<name>,
    reason_<name> and similarity_<name>; where a method makes several, _1, _2 ... stand behind the name"""
    keep: KeepSettings = KeepSettings()
    unit_rows: Annotated[int, Field(ge=1, le=2**31)] = 4_096
    """rows of a unit: what is repeated at most when a worker is killed"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """of all that is drawn"""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """arithmetic of the models"""
    threads: Annotated[int, Field(ge=1)] = 1
    """threads of one worker on a CPU"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU where a worker is given one, else the CPU"""

    @field_validator("name")
    @classmethod
    def _name_is_a_folder(cls, value: str) -> str:
        if not value or not all(sign.isalnum() or sign in "-_." for sign in value) or value.startswith("."):
            raise ValueError(f"a name of letters, digits, '-', '_' and '.', not {value!r}")
        return value

    @field_validator("variants")
    @classmethod
    def _names_become_columns(cls, value: dict[str, VariantSettings]) -> dict[str, VariantSettings]:
        for name in value:
            if not name or not all(sign.isalnum() or sign in "-_" for sign in name) or name in _RESERVED:
                raise ValueError(f"names of variants in letters, digits, '-' and '_', not {name!r}")
        return value
