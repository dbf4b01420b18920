"""Settings of the encoder, and of the units that are encoded with it."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from pipeline.config import Settings
from pipeline.settings.corpus import Uri

Dtype = Literal["float32", "bfloat16", "float16"]


class EncoderSettings(Settings):
    """The model that makes the vectors; what is null is as the model folder says."""

    path: Uri = "all-MiniLM-L6-v2"
    """a folder, a file:// or s3:// URI of one, or a hub id; all-MiniLM-L6-v2 alone is the copy packaged with
    the extra `local` where installed; or a file of word vectors in word2vec's or GloVe's form, text or
    binary, also with .gz: a text is then the average of its known words, lower-cased where their words are"""
    pooling: str | None = None
    """cls, cls_mlp, mean, max, first_last, static_last, last2, static, table, sqrt_len, weighted_mean, last
    or mask; mean+max concatenates two. static averages the embedding layer's output, table the rows of its
    word table alone; mask is the state of a template's mask token"""
    template: str | None = None
    """what every text is put into, such as This sentence : "[X]" means [MASK]. : [X] is the text, cut before
    to the tokens that are left of max_length, [MASK] the tokenizer's mask token, whose state is the vector
    unless `pooling` says otherwise (Jiang et al. 2022, PromptBERT)"""
    ensure_final_punctuation: bool = False
    """whether a text that ends in none of . ? " ' gets a full stop"""
    prompt: str | None = None
    """text put before every text of the corpus"""
    query_prompt: str | None = None
    """text put before every query; null: the folder's query prompt where the corpus gets its counterpart,
    else the same as `prompt`"""
    max_length: Annotated[int, Field(ge=4)] | None = None
    """tokens of one text, special tokens included; what is longer is cut, at the end unless the folder's
    tokenizer says at the start, and counted"""
    normalize: bool | None = None
    """false drops the folder's Normalize module, true adds one; either is another space"""
    exclude: tuple[Literal["frequent", "subword", "case", "punctuation"], ...] = ()
    """tokens left out of an average (Jiang et al. 2022, PromptBERT): the most frequent ones, pieces of words,
    those with upper case, punctuation; special tokens then stay out too. A text of nothing else keeps them
    all"""
    frequent: Annotated[int, Field(ge=1)] = 36
    """how many tokens `frequent` leaves out, by `frequencies`"""
    frequencies: str | None = None
    """a Parquet file, path or URI, with the columns word and count, for `exclude: [frequent]` and `sif`; an
    encoder folder that has frequencies.parquet in it, as a release's copy has, keeps to that"""
    sif: Annotated[float, Field(gt=0)] | None = None
    """weigh a word of probability p by sif / (sif + p) in an average (Arora et al. 2017; 0.001 is usual);
    null: all alike. Needs word vectors and `frequencies`"""

    @field_validator("template")
    @classmethod
    def _one_text_and_one_mask(cls, value: str | None) -> str | None:
        for part in ("[X]", "[MASK]"):
            if value is not None and value.count(part) != 1:
                raise ValueError(f"a template has {part} once, {value!r} has it {value.count(part)} times")
        return value


class EncodeSettings(Settings):
    """Units of the corpus, and the arithmetic that encodes them."""

    unit_rows: Annotated[int, Field(ge=1, le=2**31)] = 32_768
    """rows of a unit: the unit of work, retry, resume and output"""
    max_tokens: Annotated[int, Field(ge=64, lt=2**31)] | None = None
    """tokens of one packed buffer; null: 1,024 on a CPU, 32,768 on a GPU. Part of what makes vectors
    bit-identical, so it never adapts by itself"""
    window_rows: Annotated[int, Field(ge=1)] = 32_768
    """rows planned together: identical texts inside a window are encoded once"""
    dtype: Dtype = "float32"
    """arithmetic of the forward pass; pooling and normalisation stay float32"""
    compile: bool = True
    """on a GPU: compile normalisation and residual sum into one kernel where Triton is at hand, else say so
    once. A CPU needs no compiler: oneDNN fuses"""
    vectors: Literal["float32", "float16"] = "float32"
    """type of the stored vectors"""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """threads of one worker's forward pass on a CPU"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU that cluster.gpus_per_worker asks for, else the CPU"""
