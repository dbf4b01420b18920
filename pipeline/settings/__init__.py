"""Every section of a job's YAML: the same keys for every command.

No I/O, no tensors, no device: values that travel to a worker.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from pipeline.config import Settings
from pipeline.settings.augment import AugmentSettings
from pipeline.settings.training import TrainSettings

_NAMED = Field(min_length=1, pattern=r"^[^\x00]*$")  # "" would be the working directory
Dtype = Literal["float32", "bfloat16", "float16"]


class CorpusSettings(Settings):
    """Which text, and how a row of it is read."""

    uri: Annotated[str, _NAMED] = "corpus"
    """a file, a glob, a directory (hive partitions become columns, links are followed), or a file:// or s3://
    URI of one"""
    format: Literal["auto", "parquet", "jsonl"] = "auto"
    """auto goes by the ending: .parquet; .jsonl, .ndjson or .json, each also with .gz"""
    id: str = "id"
    """column of the row's id: string or integer, unique, kept as it is"""
    text: str = "text"
    """column of the text: string, or binary holding UTF-8"""
    keep: tuple[str, ...] = ()
    """further columns carried to the vectors and to search results"""
    harvest: Literal["docstrings"] | None = None
    """fill `uri` first: docstrings = those of the Python packages installed here (id = dotted name, text =
    first paragraph)"""
    max_rows: Annotated[int, Field(ge=1)] | None = None
    """read at most so many rows, in (file name, row) order; the rest is counted as skipped"""
    bad_files: Literal["error", "skip"] = "error"
    """what an unreadable file, or one with missing or wrongly typed columns, does: stop with exit code 3, or
    be skipped, counted and put on record"""
    max_quarantined: Annotated[float, Field(ge=0, le=1)] = 0.5
    """proportion of the rows that may be quarantined. The night stops with exit code 3 if reading quarantines
    more, and with 5 if the encoder's unusable vectors raise it above that"""
    fingerprint: Literal["fast", "full"] = "fast"
    """how an unchanged file is known: size with modification time or etag, or its whole content, which reads
    every file every night. fast takes a file for unchanged that was rewritten with the same size and time
    stamp"""


class EncoderSettings(Settings):
    """The model that makes the vectors; what is null is as the model folder says."""

    path: Annotated[str, _NAMED] = "all-MiniLM-L6-v2"
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


class FlowSettings(Settings):
    """The normalising flow of BERT-flow (Li et al. 2020): Glow on vectors, trained by maximum likelihood."""

    levels: Annotated[int, Field(ge=1)] = 2
    """after each level but the last, half of the dimensions are final; the dimension must be divisible by
    2^levels"""
    depth: Annotated[int, Field(ge=1)] = 3
    """steps of a level: actnorm, permutation, additive coupling"""
    width: Annotated[int, Field(ge=1)] = 32
    """hidden units of a coupling's network"""
    permutation: Literal["reverse", "random"] = "reverse"
    """of the dimensions before each coupling: turned round, or drawn once by seed"""
    epochs: Annotated[float, Field(gt=0)] = 1.0
    """passes over the vectors; a part of one is allowed"""
    batch_rows: Annotated[int, Field(ge=2)] = 32
    """vectors of one training step"""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """of AdamW, constant"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """of AdamW, on the matrices of couplings alone; locations and scales are left as learned"""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """largest norm of the gradient"""
    checkpoint_steps: Annotated[int, Field(ge=1)] = 1_000
    """steps between two checkpoints: what a killed training repeats at most"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """of the initial weights, the order of the vectors and a random permutation"""


class WhitenSettings(Settings):
    """The transform of the published index, whitening (Su et al. 2021) unless another is named; stored
    vectors stay raw.
    """

    mode: Literal["auto", "on", "off"] = "auto"
    """auto compares raw and transformed, and transforms only where that is not worse"""
    transform: str = "whitening"
    """whitening, standardize (zero mean, unit variance per dimension), components (all-but-the-top; SIF's
    with `centred: false`) or flow; several in a row joined by +, such as standardize+components. A flow is no
    linear map and serves `manta whiten` and `manta evaluate` only, not the index"""
    k: Annotated[int, Field(ge=1)] | Literal["dev", "likelihood"] | None = None
    """components whitening keeps; null: all of the covariance's rank; dev: best on `dev`; likelihood: best
    for rows held out (probabilistic PCA)"""
    rotation: Literal["pca", "zca"] = "pca"
    """zca turns whitened vectors back to the old axes: equal cosines where nothing is cut off"""
    shrinkage: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = 0.0
    """how far the covariance is drawn to a multiple of the identity before it is inverted; auto: oracle
    approximating shrinkage (Chen et al. 2010)"""
    ridge: Annotated[float, Field(ge=0)] = 0.0
    """added to every eigenvalue, as a share of their mean: small directions are blown up less"""
    remove: Annotated[int, Field(ge=0)] | Literal["dev"] = 1
    """directions that `components` takes out; dev: best on `dev`"""
    centred: bool = True
    """whether `components` subtracts the mean and takes principal directions; false: the first singular
    vectors of the vectors as they are (SIF)"""
    dev: str | None = None
    """an STS file (sentence1, sentence2, score) for auto and for k and remove by dev; null: split-half
    retrieval on the corpus itself"""
    max_drift: Annotated[float, Field(gt=0)] = 0.1
    """the fit of an earlier night is kept until vectors have moved this far from those it was fitted on: 0.1
    is a tenth of a standard deviation, or 10 % of variance"""
    dev_texts: Annotated[int, Field(ge=10)] = 1_000
    """sampled texts of eight words or more for split-half retrieval"""
    write_vectors: bool = False
    """`manta whiten` also writes the transformed vectors as units"""
    flow: FlowSettings = FlowSettings()


INDEX_KINDS = ("auto", "flat", "ivf_flat", "ivf_sq8", "opq_ivf_pq", "hnsw")


def _kind_or_factory(kind: str) -> str:
    """The kind of an index. faiss is not asked here; whatever begins with a capital may be a factory string
    of its own.
    """
    if kind not in INDEX_KINDS and not kind[:1].isupper():
        raise ValueError(
            f"{', '.join(map(repr, INDEX_KINDS))} or a faiss factory string such as IVF1024,PQ48x8"
        )
    return kind


class IndexSettings(Settings):
    """The faiss index; its metric is the cosine (inner product of normalised vectors)."""

    kind: Annotated[str, AfterValidator(_kind_or_factory)] = "auto"
    """auto, flat, ivf_flat, ivf_sq8, opq_ivf_pq, hnsw, or a faiss factory string such as IVF1024,PQ48x8"""
    memory_gib: Annotated[float, Field(gt=0)] = 8.0
    """memory a searcher has for the index; auto picks the most exact kind that fits"""
    shards: Annotated[int, Field(ge=1)] | None = None
    """parts filled in parallel, then merged; null: one per index worker"""
    nlist: Annotated[int, Field(ge=1)] | None = None
    """lists of an IVF index; null: about 4 * sqrt(rows)"""
    train_rows: Annotated[int, Field(ge=1)] | None = None
    """rows the quantizer is trained on; null: 64 per list, at least 20,000 where there are so many"""
    nprobe: Annotated[int, Field(ge=1)] | None = None
    """lists a query visits; null: the fewest whose recall is above gates.recall_at_10 with its whole 95 %
    interval, and up to sixteen times as many if queries near deleted rows need them for that recall"""
    queries: Annotated[int, Field(ge=2)] = 1_000
    """rows sampled as queries; nprobe is chosen on one half, recall reported on the other"""
    on_disk: Literal["auto", "never", "always"] = "auto"
    """keep the lists of an IVF index in a second file that searchers map; auto: where the index exceeds
    memory_gib"""
    seed: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    """of the quantizer's training"""
    rewrite_gib: Annotated[float, Field(gt=0)] = 64.0
    """index file up to which a night takes rows out of last night's index and adds the new ones; a larger one
    stays, and new rows get a file beside it"""


class GateSettings(Settings):
    """Demands on a candidate before it is published; null switches a gate off.

    Row conservation, unique ids and finite vectors are always checked.
    """

    recall_at_10: Annotated[float, Field(ge=0, le=1)] | None = 0.95
    """share of the exact ten nearest found; refused when even the upper end of its 95 % Wilson interval stays
    below"""
    queries: str | None = None
    """a file of texts that people ask, one on each line, or Parquet with a column query or text; a path or a
    URI. Their recall@10 is measured and reported beside that of rows of the corpus, which recall_at_10 asks
    for, at the cost of one exact search of all rows each night; null: rows only"""
    max_size_gib: Annotated[float, Field(gt=0)] | None = None
    """size of the index files"""
    p99_ms: Annotated[float, Field(gt=0)] | None = None
    """99th percentile of one query's time at the set nprobe, one thread"""
    canary_cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    """lowest cosine of the canary texts' vectors with the previous release's, same space; null: 0.9999 in
    float32, 0.999 in half precision"""
    unknown_tokens: Annotated[float, Field(ge=0, le=1)] | None = 0.2
    """proportion of the texts' tokens that the encoder's tokenizer does not know ([UNK], or the bytes that it
    falls back to), over all units of the release. Of what word vectors lack, punctuation, numbers, single
    letters and English stop words do not count: many files leave them out on purpose"""
    lost_tokens: Annotated[float, Field(ge=0, le=1)] | None = 0.95
    """proportion of the texts' tokens that lie beyond the encoder's limit and are in no vector, over all
    units of the release. Whole articles by an encoder of 256 or 512 tokens lose half or more, and their
    beginnings often serve: only where 19 of 20 tokens are lost does search hardly find more than titles"""

    @property
    def wanted_recall(self) -> float:
        """The recall@10 that the search effort is chosen for: that of the gate, or 0.95 if it is off."""
        return 0.95 if self.recall_at_10 is None else self.recall_at_10


class ReleaseSettings(Settings):
    """The place of releases."""

    root: Annotated[str, _NAMED] = "releases"
    """a directory or an s3:// URI"""
    commits_root: str | None = None
    """a store that has create-once, for commits, when `root` has not"""


class WorkerSettings(Settings):
    """Encode workers; a plain number (cluster.workers=4) is both.

    Both null: as many as fit the cluster now. Never more than there are units.
    """

    min: Annotated[int, Field(ge=1)] | None = None
    """as few as a pool may have; null: 1. Without room for them the command ends: at once with exit code 2
    where the cluster cannot grow, after cluster.wait_s with 75 where it can"""
    max: Annotated[int, Field(ge=1)] | None = None
    """as many as a pool may grow to, while nodes come; null: as many as fit the cluster now"""

    @model_validator(mode="after")
    def _range_is_one(self) -> "WorkerSettings":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min to be at most max, not {self.min} and {self.max}")
        return self


class ClusterSettings(Settings):
    """The Ray cluster and the pools on it."""

    address: str | None = None
    """host:port or auto; null: the cluster of RAY_ADDRESS, as inside `ray job submit` (an http address is
    ignored), else a local Ray"""
    workers: WorkerSettings = WorkerSettings()
    cpus_per_worker: Annotated[float, Field(gt=0)] = 1.0
    """CPUs that Ray sets aside for an encode worker; encode.threads is what it uses"""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of an encode worker: a whole number, or a share such as 0.5; 0 encodes on the CPU"""
    index_workers: Annotated[int, Field(ge=1)] | None = None
    """workers that fill index shards; null: one per CPU"""
    small_rows: Annotated[int, Field(ge=0)] = 5_000
    """rows to encode up to which a night on this machine does without Ray: one process is done before Ray has
    started; 0 always starts Ray"""
    patience_s: Annotated[float, Field(ge=10)] = 900.0
    """seconds that a stage waits while none of its workers runs, for instance while others occupy the
    cluster; then it ends with exit code 75. A worker whose item shows no progress for so long (no rows, CPU
    time or transfer), and for ten times the slowest item so far, is killed, and the item begins again"""
    wait_s: Annotated[float, Field(ge=10)] | None = None
    """seconds that a stage waits for a node that holds one of its workers, where the cluster's autoscaler can
    add such nodes, or where one was there earlier in the run and is lost; then it ends with exit code 75.
    Where no node that is there or can be added holds a worker, it ends at once with exit code 2; null: as
    long as patience_s"""

    @field_validator("workers", mode="before")
    @classmethod
    def _number_is_both(cls, value: Any) -> Any:
        if value is None:
            return WorkerSettings()
        return (
            {"min": value, "max": value} if isinstance(value, int) and not isinstance(value, bool) else value
        )

    @field_validator("gpus_per_worker")
    @classmethod
    def _shares_are_of_one_gpu(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError(
                "a share of one GPU or a whole number of GPUs, since Ray splits single GPUs only"
            )
        return value


class CandidateSettings(Settings):
    """An encoder to evaluate, alone or with a fitted transform, or a published release with both.

    A plain string is a release (release:current, release:7, ROOT#7, ROOT#current) or else an encoder's path.
    """

    name: str | None = None
    """in tables; null: made from the rest"""
    encoder: EncoderSettings | None = None
    """null: the job's"""
    transform: str | None = None
    """file of a fitted transform, such as those below transforms/ of a release root"""
    release: Annotated[int, Field(ge=1)] | Literal["current"] | None = None
    root: str | None = None
    """of the release; null: release.root"""

    @model_validator(mode="before")
    @classmethod
    def _string_is_short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        root, sign, number = (
            value.removeprefix("release:").rpartition("#")
            if not value.startswith("release:")
            else ("", "#", value.removeprefix("release:"))
        )
        if sign and (number == "current" or number.isdigit()):
            return {"release": number if number == "current" else int(number), "root": root or None}
        return {"encoder": {"path": value}}

    @model_validator(mode="after")
    def _release_has_its_own(self) -> "CandidateSettings":
        if self.release is not None and (self.encoder is not None or self.transform is not None):
            raise ValueError(
                "a release or an encoder, not both: a release brings its encoder and its transform"
            )
        return self


class TaskSettings(Settings):
    """One's own data as a task."""

    kind: str
    """sts, triplets, pairs, retrieval, duplicates or transfer"""
    uri: str
    """a Parquet file"""
    name: str | None = None
    """null: the file's name"""
    columns: dict[str, str] = {}
    """role: column, where they differ. sts: sentence1, sentence2, score; triplets: anchor, positive,
    negative; pairs: sentence1, sentence2, label; retrieval: query, positive or text, group; duplicates: as
    pairs, or text, group; transfer: text (or sentence1, sentence2), label, split"""
    options: dict[str, float | int | str | bool] = {}
    """of the kind: see its class"""


class GeometrySettings(Settings):
    """Samples and measures of `manta evaluate --geometry`."""

    sentences: Annotated[int, Field(ge=10, le=100_000)] = 2_000
    """sampled from the corpus by hash of their text"""
    pairs: Annotated[int, Field(ge=10)] = 1_000
    """random pairs behind each baseline, and at most so many for one word"""
    contexts: Annotated[int, Field(ge=2)] = 5
    """least number of sentences in which a word must occur for its self-similarity"""
    neighbours: Annotated[int, Field(ge=1)] = 10
    """k of hubness and of the distance to a word's nearest words"""
    edit_distance: Literal["characters", "words"] = "characters"
    """what an edit inserts, deletes or replaces, where similarity is compared with edit distance"""
    centred: bool = True
    """whether explained variance is that about the mean of a word's vectors, as in published figures; false:
    about zero, as it is printed (Ethayarajh 2019)"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """of every sample"""


class EvaluateSettings(Settings):
    """Tasks and candidates of `manta evaluate`.

    Without tasks of any kind it measures the published release against the gates.
    """

    tasks: str | None = None
    """a folder with sts/NAME.parquet (subset, sentence1, sentence2, score), stsb-multi/NAME.parquet and
    senteval/NAME.parquet (text, label, split)"""
    names: tuple[str, ...] = ("sts",)
    """of the folder's tasks: sts (STS12 to STS16, STSB-test, SICK-R), stsb-multi (all that is there),
    senteval (MR, CR, SUBJ, MPQA, SST2, SST5, TREC, MRPC), or single ones such as STSB-dev, SICK-R-trial,
    STSB-de-test. What is missing is named, and no average hides it"""
    own: tuple[TaskSettings, ...] = ()
    """tasks on one's own data: a list of {kind, uri, name, columns, options}; kind is sts, triplets, pairs,
    retrieval, duplicates or transfer"""
    candidates: tuple[CandidateSettings, ...] = ()
    """encoder paths, release:current, ROOT#7, or mappings with name, encoder, transform, release, root ({} is
    the job's encoder); none: the job's encoder. All are compared with the first one, with intervals of the
    differences"""
    similarity: Literal["cosine", "angular", "euclidean", "dot"] = "cosine"
    """of two sentences: angular is that of Cer et al. 2018 (USE), euclidean is minus the distance"""
    aggregation: Literal["all", "mean", "wmean"] = "all"
    """over a task's subsets: one correlation over all pairs together, the subsets' mean, or their mean
    weighted by pairs"""
    solver: Literal["lbfgs", "sgd"] = "lbfgs"
    """of the transfer tasks' logistic regression: convex to the optimum over inverse strengths, or Adam with
    early stopping as in published tables"""
    folds: Annotated[int, Field(ge=2)] = 10
    """of cross-validation in transfer tasks"""
    bootstrap: Annotated[int, Field(ge=0)] = 1_000
    """resamples behind the 95 % intervals; 0: none"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1111
    """of folds, resamples and classifiers"""
    root: str | None = None
    """below evaluations/ of it sentence vectors, figures and pages are kept, so that a second run takes them
    over; prune leaves them; null: release.root"""
    geometry: GeometrySettings = GeometrySettings()


RESULT_COLUMNS = ("text_key", "vector", "address", "query", "rank", "score")


class Job(Settings):
    """One YAML: every command reads the sections that it needs."""

    corpus: CorpusSettings = CorpusSettings()
    encoder: EncoderSettings = EncoderSettings()
    encode: EncodeSettings = EncodeSettings()
    whiten: WhitenSettings = WhitenSettings()
    index: IndexSettings = IndexSettings()
    gates: GateSettings = GateSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    train: TrainSettings = TrainSettings()
    augment: AugmentSettings = AugmentSettings()
    release: ReleaseSettings = ReleaseSettings()
    cluster: ClusterSettings = ClusterSettings()

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> "Job":
        kept = self.corpus.keep
        taken = {*RESULT_COLUMNS, *(["id"] if self.corpus.id != "id" else [])} & set(kept)
        if self.corpus.id in kept or len(set(kept)) < len(kept):
            raise ValueError(
                "corpus.id and corpus.keep to name each column once, not "
                f"{', '.join((self.corpus.id, *kept))}"
            )
        if taken:
            raise ValueError(
                f"corpus.keep to leave out {', '.join(sorted(taken))}: vectors and search results use "
                "that name; rename the column"
            )
        return self
