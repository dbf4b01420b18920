"""Settings of an evaluation: its tasks, and the encoders and releases that are compared."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config import Settings
from pipeline.settings.encode import EncoderSettings
from pipeline.settings.whiten import WhitenSettings

_RELEASE = re.compile(r"(release:|(?P<root>(?!release:).+)?#)(?P<release>current|\d+)", re.DOTALL)
_TIMES = ("never", "once")
TARGET = "target"


class FitSettings(Settings):
    """A transform that is fitted for each task of an evaluation."""

    on: str = TARGET
    """target: the sentences of all columns and splits of the task, without scores (Li et al. 2020, BERT-flow;
    Su et al. 2021); or a Parquet file, a glob, a directory or a URI with the column text, such as the
    sentences of NLI"""
    whiten: WhitenSettings | None = None
    """the transform, with numbers for `k` and `remove`; null: the job's `whiten`"""


class CandidateSettings(Settings):
    """An encoder to evaluate, alone or with a fitted transform, or a published release with its own.

    A plain string is a release (release:current, release:7, ROOT#7, ROOT#current) or else an encoder's path.
    """

    name: str | None = None
    """name in tables; null: made from the other settings"""
    encoder: EncoderSettings | None = None
    """the encoder; null: the job's encoder"""
    transform: str | None = None
    """file of a fitted transform, such as those below transforms/ of a release root"""
    fit: FitSettings | None = None
    """fit a transform for each task, instead of one in a file: see `FitSettings`; null: no transform is
    fitted"""
    release: Annotated[int, Field(ge=1)] | Literal["current"] | None = None
    """number of a published release, or current; null: an encoder is evaluated"""
    root: str | None = None
    """root of the release; null: release.root"""
    tfidf: str | None = None
    """a Parquet file, a glob, a directory or a URI with the column text: the candidate is TF-IDF with the
    words and document frequencies of these texts (Hill et al. 2016). Its vectors are sparse: only tasks of
    kind sts and retrieval can compare them, and no night can store them; null: an encoder or a release is
    evaluated"""

    @model_validator(mode="before")
    @classmethod
    def _string_is_short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _RELEASE.fullmatch(value)
        return {"encoder": {"path": value}} if match is None else match.groupdict()

    @model_validator(mode="after")
    def _tfidf_is_alone(self) -> "CandidateSettings":
        others = (self.encoder, self.transform, self.fit, self.release, self.root)
        if self.tfidf is not None and any(each is not None for each in others):
            raise ValueError("tfidf alone, without encoder, transform, fit, release and root")
        return self

    @model_validator(mode="after")
    def _release_has_its_own(self) -> "CandidateSettings":
        others = (self.encoder, self.transform, self.fit)
        if self.release is not None and any(each is not None for each in others):
            raise ValueError(
                "a release or an encoder, not both: a release brings its encoder and its transform"
            )
        if self.transform is not None and self.fit is not None:
            raise ValueError("transform or fit, not both: a file has a transform that was fitted before")
        return self


class TaskSettings(Settings):
    """An evaluation task on the user's own data."""

    kind: str
    """sts, triplets, pairs, retrieval, duplicates, transfer, relatedness, analogies, categories or weat"""
    uri: str
    """a Parquet file"""
    name: str | None = None
    """name in tables; null: the file's name"""
    columns: dict[str, str] = {}
    """role -> column, if the column's name is not the role. Roles of sts: sentence1, sentence2, score;
    triplets: anchor, positive, negative; pairs: sentence1, sentence2, label; retrieval: query, positive or
    text, group; duplicates: as pairs, or text, group; transfer: text (or sentence1, sentence2), label, split;
    relatedness: sentence1, sentence2, score, split; analogies: a, b, c, d; categories: text, label; weat:
    text, set"""
    options: dict[str, float | int | str | bool] = {}
    """options of the kind, described in its class in pipeline/evaluate"""


class GeometrySettings(Settings):
    """Samples and measures of `manta evaluate --geometry`."""

    sentences: Annotated[int, Field(ge=10, le=100_000)] = 2_000
    """number of sentences, sampled from the corpus by the hash of their text"""
    pairs: Annotated[int, Field(ge=10)] = 1_000
    """number of random pairs for each baseline, and the largest number of pairs for one word"""
    contexts: Annotated[int, Field(ge=2)] = 5
    """smallest number of sentences in which a word must occur to measure its self-similarity"""
    neighbours: Annotated[int, Field(ge=1)] = 10
    """number of nearest neighbours for hubness and for the distance to a word's nearest words"""
    edit_distance: Literal["characters", "words"] = "characters"
    """unit that an edit inserts, deletes or replaces, to compare similarity with edit distance"""
    mev: Literal["literal", "published", "centred"] = "literal"
    """definition of the maximum explained variance of a word's vectors (Ethayarajh 2019): literal is that
    paper's formula, which gives about zero; published is the value that the authors' program computes;
    centred is the variance that the first principal component explains about the mean"""
    static_words: bool = False
    """write a static vector of each word that has enough contexts: the first principal component of its
    vectors in a layer (Ethayarajh 2019), in a word2vec text file for each layer, below evaluations/"""
    token_bias: bool = False
    """also compare averages of the input and the output table of token embeddings, and show both tables in
    two dimensions by frequency rank, sub-word and case (Jiang et al. 2022, PromptBERT). Needs pairs with
    human scores; tokens are counted in these, or in `encoder.frequencies` where it is set"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of every sample"""

    @model_validator(mode="before")
    @classmethod
    def _read_centred(cls, given: Any) -> Any:
        """Read `centred: true` and `false`, which settings of earlier versions have, as a value of `mev`."""
        if isinstance(given, dict) and "centred" in given and "mev" not in given:
            others = {name: value for name, value in given.items() if name != "centred"}
            return others | {"mev": "centred" if given["centred"] else "literal"}
        return given


class MaskWordsSettings(Settings):
    """Texts and words of `manta evaluate --mask-words`."""

    top_k: Annotated[int, Field(ge=1)] = 200
    """number of most probable words at the mask whose embeddings are averaged, weighted by their probability
    (Jiang et al. 2022, PromptBERT)"""
    shown: Annotated[int, Field(ge=1, le=100)] = 5
    """number of most probable words to print for a text"""
    texts: tuple[str, ...] = ()
    """texts whose words are printed; none: the first sentences of the pairs with human scores"""
    sentences: Annotated[int, Field(ge=1, le=1_000)] = 10
    """number of first sentences, if `texts` is empty"""


class GeneratorSettings(Settings):
    """A T5 that proposes templates (Jiang et al. 2022, PromptBERT; beam search of Gao et al. 2021, LM-BFF).

    It fills the blanks before and after a word that is followed by its definition. The word becomes [MASK]
    and the definition [X], as in `Also called [MASK]. [X]`.
    """

    path: str
    """a T5 that fills spans, not fine-tuned: a folder, a URI or a hub id, readable by all workers"""
    definitions: str
    """a Parquet file with the columns word and definition"""
    examples: Annotated[int, Field(ge=1)] = 32
    """number of definitions for which the templates shall be probable, drawn by the seed"""
    candidates: Annotated[int, Field(ge=1)] = 500
    """number of templates to score"""
    beams: Annotated[int, Field(ge=1)] = 100
    """number of unfinished templates that the search continues after each token"""
    max_tokens: Annotated[int, Field(ge=1)] = 20
    """greatest number of T5's tokens in a template, beside word and definition"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of the drawn definitions"""


class TemplateSettings(Settings):
    """Templates that `manta search-template` tries: a wrapper of the text, a relation, the mask, the ending.

    The defaults are those of PromptBERT (Jiang et al. 2022), for English.
    """

    relations: Annotated[tuple[str, ...], Field(min_length=1)] = ("", "is", "mean", "means")
    """words between the wrapped text and the mask, tried first, with the first wrapper"""
    wrappers: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "[X]",
        "This [X]",
        "This sentence of [X]",
        'This sentence of "[X]"',
        'This sentence : "[X]"',
    )
    """the text, [X], with words and marks around it; tried with the best relation"""
    ending: str = "."
    """end of the template, after the mask"""
    others: tuple[str, ...] = ()
    """further whole templates, with [X] and [MASK], to compare with the best one"""
    generator: GeneratorSettings | None = None
    """a T5 that proposes further templates; null: none"""

    @model_validator(mode="after")
    def _one_text_and_one_mask(self) -> "TemplateSettings":
        for name, parts, expected in (
            ("relations", self.relations, (0, 0)),
            ("wrappers", self.wrappers, (1, 0)),
            ("ending", (self.ending,), (0, 0)),
            ("others", self.others, (1, 1)),
        ):
            for part in parts:
                if (part.count("[X]"), part.count("[MASK]")) != expected:
                    text, mask = (_TIMES[count] for count in expected)
                    raise ValueError(f"{name} to have [X] {text} and [MASK] {mask}, not {part!r}")
        return self


class EvaluateSettings(Settings):
    """Tasks and candidates of `manta evaluate`.

    Without any task, it measures the published release and compares the results with the gates.
    """

    tasks: str | None = None
    """a folder with sts/NAME.parquet (subset, sentence1, sentence2, score), stsb-multi/NAME.parquet and
    senteval/NAME.parquet (text, label, split)"""
    names: tuple[str, ...] = ("sts",)
    """tasks in the folder: sts (STS12 to STS16, STSB-test, SICK-R), stsb-multi (all of its files), senteval
    (MR, CR, SUBJ, MPQA, SST2, SST5, TREC, MRPC), or single ones such as STSB-dev, SICK-R-trial, STSB-de-test.
    Missing tasks are listed, and averages over them are left out"""
    own: tuple[TaskSettings, ...] = ()
    """tasks on the user's own data: a list of {kind, uri, name, columns, options}; kind is sts, triplets,
    pairs, retrieval, duplicates, transfer, relatedness, analogies, categories or weat"""
    candidates: tuple[CandidateSettings, ...] = ()
    """encoder paths, release:current, ROOT#7, or mappings with name, encoder, transform, fit, release, root,
    or tfidf ({} is the job's encoder); none: the job's encoder. Each further candidate is compared
    with the first one, with intervals of the differences"""
    similarity: Literal["cosine", "angular", "euclidean", "manhattan", "dot"] | None = None
    """similarity of two sentences; null: similarity_fn_name of the encoder's folder, else cosine. angular is
    that of Cer et al. 2018 (USE); euclidean and manhattan are minus the distance (L2 and L1)"""
    aggregation: Literal["all", "mean", "wmean"] = "all"
    """score of a task with subsets. all: one correlation over all pairs; mean: the mean over the subsets;
    wmean: their mean weighted by number of pairs"""
    solver: Literal["lbfgs", "sgd"] = "lbfgs"
    """solver of the logistic regression in transfer tasks. lbfgs: L-BFGS to the optimum, with a search over
    regularization strengths; sgd: Adam with early stopping, as in published tables"""
    folds: Annotated[int, Field(ge=2)] = 10
    """number of folds of the cross-validation in tasks that train: transfer, and relatedness without a dev
    split"""
    bootstrap: Annotated[int, Field(ge=0)] = 1_000
    """resamples for the 95 % intervals; 0: no intervals"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1111
    """seed of folds, resamples and classifiers"""
    root: str | None = None
    """root below which sentence vectors, scores and pages are stored, in evaluations/, and reused by later
    runs; prune keeps them; null: release.root"""
    geometry: GeometrySettings = GeometrySettings()
    mask_words: MaskWordsSettings = MaskWordsSettings()
    templates: TemplateSettings = TemplateSettings()
