"""Settings of augmentation: how variants of the corpus's texts are made, and which of them are kept."""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from pipeline.config import Settings, ShortSettings

Proportion = Annotated[float, Field(ge=0, le=1)]
_RESERVED = ("id", "text", "text_key")  # columns of an augmented corpus that are not variants


class KeepSettings(Settings):
    """Tests that a variant must pass to be kept; null switches a test off.

    A rejected variant is stored too, with its reason. Texts are compared in Unicode NFKC, case folded,
    without punctuation, and with single blanks as white space. A variant that is empty in this form, although
    its text is not, is always rejected: reason empty.
    """

    identical: bool = False
    """whether to keep a variant equal to its text; reason identical"""
    duplicates: bool = False
    """whether to keep a variant equal to another one of its row that is kept already; reason duplicate"""
    length_ratio: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)]] | None = (0.5, 2.0)
    """smallest and largest ratio of a variant's length to its text's, in characters; reasons too_short,
    too_long"""
    repeats: Annotated[int, Field(ge=1)] | None = 2
    """how often a run of `repeat_words` consecutive words may occur in a variant, unless some run occurs more
    often in the text. Nor may a variant have more words that repeat the word before them than its text has.
    Words end at white space or punctuation; reason repetition"""
    repeat_words: Annotated[int, Field(ge=1)] = 3
    """number of words of a run"""
    language: str | None = None
    """ISO 639-1 code of the language that variants must have (extra `augment`); reason language"""
    languages: tuple[str, ...] = ()
    """with `language`: the languages to distinguish, such as those of the texts and of the models; none: all
    known languages, among which the language of a short text is often mistaken"""
    similarity: tuple[Annotated[float, Field(ge=-1, le=1)], Annotated[float, Field(ge=-1, le=1)]] | None = (
        None
    )
    """lowest and highest cosine of a variant with its text, by the job's encoder; reasons unlike, alike"""

    @model_validator(mode="after")
    def _bounds_rise(self) -> Self:
        for name in ("length_ratio", "similarity"):
            bounds = getattr(self, name)
            if bounds is not None and not bounds[0] < bounds[1]:
                raise ValueError(f"{name} in rising order, not {bounds[0]:g}, {bounds[1]:g}")
        if self.language is not None and self.languages and self.language not in self.languages:
            raise ValueError(f"languages to include `language`, which is {self.language!r}")
        return self


class DecodingSettings(Settings):
    """Decoding of a translation."""

    method: Literal["greedy", "beam", "sample"] = "greedy"
    """greedy: the most probable token at each position; beam: beam search; sample: tokens drawn by their
    probability"""
    beams: Annotated[int, Field(ge=2)] = 4
    """number of beams of a beam search"""
    length_penalty: float = 1.0
    """beam search: above 0 favours long translations, below 0 short ones"""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """sampling: divides the logits"""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """sampling: draw among the fewest most probable tokens whose probabilities add up to this (Holtzman et
    al. 2020)"""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """sampling: draw among this number of most probable tokens; 10 is restricted sampling (Edunov et al.
    2018); null: among all"""
    hypotheses: Annotated[int, Field(ge=1)] = 1
    """translations of each text: samples, or the best of a beam search"""
    max_ratio: Annotated[float, Field(gt=0)] = 2.0
    """a translation has at most max_ratio * (tokens of its source) + max_extra tokens"""
    max_extra: Annotated[int, Field(ge=0)] = 10
    """number of tokens that the limit of max_ratio adds"""
    min_ratio: Annotated[float, Field(ge=0)] = 0.0
    """a translation has at least min_ratio * (tokens of its source) tokens"""

    @model_validator(mode="after")
    def _hypotheses_are_possible(self) -> Self:
        limit = {"greedy": 1, "beam": self.beams}.get(self.method)
        if limit is not None and self.hypotheses > limit:
            raise ValueError(f"hypotheses to be at most {limit} with {self.method}, not {self.hypotheses}")
        if self.min_ratio > self.max_ratio:
            raise ValueError(
                f"min_ratio to be at most max_ratio, not {self.min_ratio:g} and {self.max_ratio:g}"
            )
        return self


class ModelSettings(ShortSettings):
    """A model, and the resources of each worker that runs it."""

    path: str
    """a folder, a URI of one, or a hub id"""
    batch_tokens: Annotated[int, Field(ge=16)] | None = None
    """source tokens of one batch, padding included; null: 2,048 on a CPU; on a GPU 65,536, and for guesses of
    masked words 16,384"""
    workers: Annotated[int, Field(ge=1)] | None = None
    """number of workers; null: cluster.workers"""
    cpus_per_worker: Annotated[float, Field(gt=0)] | None = None
    """CPUs of a worker; null: cluster.cpus_per_worker"""
    gpus_per_worker: Annotated[float, Field(ge=0)] | None = None
    """GPUs of a worker; null: cluster.gpus_per_worker"""


class TranslatorSettings(ModelSettings):
    """A sequence-to-sequence model of transformers, such as Marian (opus-mt), M2M100, NLLB, mBART or T5."""

    source: str | None = None
    """source language, as the tokenizer names it: en (M2M100), eng_Latn (NLLB), en_XX (mBART); null: the
    model has only one"""
    target: str | None = None
    """target language; the decoder is forced to begin with its token; null: the model has only one"""
    prefix: str = ""
    """text put before every text: >>fra<< and a blank for a Marian model of several languages, or "translate
    English to German: " for T5"""
    max_length: Annotated[int, Field(ge=4)] | None = None
    """largest number of source tokens of a text, special tokens included; null: the limit of the model. A
    longer text is not translated; reason too_long_for_model"""
    decoding: DecodingSettings = DecodingSettings()


class VariantSettings(ShortSettings):
    """An augmentation method with its options. A plain string is the name of a method."""

    method: str
    """name of the method, registered in pipeline/augment"""
    options: dict[str, JsonValue] = {}
    """options of the method, described in its class"""
    keep: KeepSettings | None = None
    """tests of these variants; null: augment.keep"""


class AugmentSettings(Settings):
    """Variants of the corpus's texts, by name."""

    name: str = "main"
    """name of the augmented corpus: each run that finds a change stores a numbered manifest in the folder
    augmented/<name> of release.root"""
    variants: dict[str, VariantSettings] = {}
    """name -> method, or {method, options, keep}. Each makes the columns variant_<name>, rejected_<name>,
    reason_<name> and similarity_<name>; if a method makes several variants, _1, _2 ... follow the name"""
    keep: KeepSettings = KeepSettings()
    unit_rows: Annotated[int, Field(ge=1, le=2**31)] = 4_096
    """rows of a unit; a killed worker repeats at most one unit"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of all random choices"""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """type of the models' forward pass"""
    threads: Annotated[int, Field(ge=1)] = 1
    """threads of one worker on a CPU"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if a worker has one, else the CPU"""

    @field_validator("name")
    @classmethod
    def _name_is_a_folder(cls, value: str) -> str:
        if not value or not all(char.isalnum() or char in "-_." for char in value) or value.startswith("."):
            raise ValueError(f"a name of letters, digits, '-', '_' and '.', not {value!r}")
        return value

    @field_validator("variants")
    @classmethod
    def _names_become_columns(cls, value: dict[str, VariantSettings]) -> dict[str, VariantSettings]:
        for name in value:
            if not name or not all(char.isalnum() or char in "-_" for char in name) or name in _RESERVED:
                raise ValueError(f"names of variants in letters, digits, '-' and '_', not {name!r}")
        return value
