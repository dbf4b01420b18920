"""Settings of the encoder, and of the units that are encoded with it."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from pipeline.config import Settings
from pipeline.settings.corpus import Uri

Dtype = Literal["float32", "bfloat16", "float16", "int8"]


class EncoderSettings(Settings):
    """The model that makes the vectors. A setting that is null is taken from the model folder."""

    path: Uri = "all-MiniLM-L6-v2"
    """a folder, a file:// or s3:// URI of one, or a hub id (all-MiniLM-L6-v2 is the copy in the extra `local`
    if that is installed); or a file of word vectors in the format of word2vec or GloVe, text or binary, also
    with .gz. With word vectors, the vector of a text is the average over its known words; texts are put into
    lower case if the words of the file are"""
    pooling: str | None = None
    """cls, cls_mlp, mean, max, first_last, static_last, last2, static, table, sqrt_len, weighted_mean, sum,
    last, ngrams, mask or ends; mean+max concatenates two. static averages the output of the embedding layer,
    table the word embeddings alone, ngrams the trained convolutions over 1, 3 and 5 tokens (Zhang et al.
    2020, IS-BERT); mask is the hidden state of a template's mask token; ends concatenates the last states of
    both directions of a recurrent encoder"""
    template: str | None = None
    """template for every text, such as `This sentence : "[X]" means [MASK].` [X] stands for the text, which
    is truncated so that the template fits into max_length. [MASK] is the tokenizer's mask token; its hidden
    state is the vector unless `pooling` is set (Jiang et al. 2022, PromptBERT)"""
    ensure_final_punctuation: bool = False
    """whether to add a full stop to a text that does not end with one of . ? " '"""
    prompt: str | None = None
    """text put before every text of the corpus"""
    query_prompt: str | None = None
    """text put before every query; null: `prompt` if that is set, else the folder's query prompt"""
    max_length: Annotated[int, Field(ge=4)] | None = None
    """largest number of tokens of a text, special tokens included. Longer texts are counted and
    truncated: at the end, or at the start if the folder's tokenizer does so"""
    normalize: bool | None = None
    """false removes the folder's Normalize module, true adds one; either makes another vector space"""
    dim: Annotated[int, Field(ge=1)] | None = None
    """number of components to keep, the first ones, for encoders that were trained to be truncated (Kusupati
    et al. 2022, Matryoshka); null keeps all. The shorter vectors are scaled to length one, even if
    the folder has no Normalize module, unless `normalize` is false. Each number makes another vector space"""
    exclude: tuple[Literal["frequent", "subword", "case", "punctuation"], ...] = ()
    """tokens left out of an average (Jiang et al. 2022, PromptBERT): the most frequent ones, pieces of words,
    tokens with upper case, punctuation. With any of these, special tokens are left out too. If no token of a
    text would remain, all are averaged"""
    frequent: Annotated[int, Field(ge=1)] = 36
    """number of most frequent tokens in `frequencies` that `exclude: [frequent]` leaves out"""
    frequencies: str | None = None
    """path or URI of a Parquet file: with the columns word and count, for `exclude: [frequent]` and `sif`; or
    with token and count, as `manta count` writes it, for `exclude: [frequent]` alone. A file
    frequencies.parquet in the encoder folder, such as in a release's copy, takes precedence"""
    sif: Annotated[float, Field(gt=0)] | None = None
    """weight a word of probability p by sif / (sif + p) in an average (Arora et al. 2017; 0.001 is usual);
    null: equal weights. Needs word vectors and `frequencies`"""

    @field_validator("template")
    @classmethod
    def _one_text_and_one_mask(cls, value: str | None) -> str | None:
        for part in ("[X]", "[MASK]"):
            if value is not None and value.count(part) != 1:
                raise ValueError(f"a template has {part} once, {value!r} has it {value.count(part)} times")
        return value


class EncodeSettings(Settings):
    """Units of the corpus, and the arithmetic of the forward pass."""

    unit_rows: Annotated[int, Field(ge=1, le=2**31)] = 32_768
    """rows of a unit: the unit of work, retry, resume and output. The last units leave workers idle: with
    fewer than ten units for each worker, a smaller number takes less time; `manta plan` predicts how long"""
    max_tokens: Annotated[int, Field(ge=64, lt=2**31)] | None = None
    """tokens of one packed buffer; null: 1,024 on a CPU, 32,768 on a GPU, or more if the encoder has a table
    of positions and reads longer texts. With rotary positions, a longer text is encoded alone, in a multiple
    of it. It is fixed during a run, because vectors are bit-identical only with buffers of equal size"""
    window_rows: Annotated[int, Field(ge=1)] = 32_768
    """rows whose buffers are planned together; equal texts in a window are encoded once"""
    dtype: Dtype = "float32"
    """type of the forward pass; pooling and normalization stay in float32. int8 is for Transformers with a
    packed forward pass on CPUs with AVX512_VNNI: weights and inputs of linear layers are rounded to 8 bits,
    with a scale for each output and each token; everything else is in float32"""
    compile: bool = True
    """on a GPU, compile normalization with the residual sum, and the rotation of heads, into one kernel each.
    This needs Triton and a C compiler; without them, a message says so and nothing is compiled. No effect on
    a CPU"""
    vectors: Literal["float32", "float16"] = "float32"
    """type of the stored vectors"""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """threads of one worker's forward pass on a CPU"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if cluster.gpus_per_worker is above 0, else the CPU"""
