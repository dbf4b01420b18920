"""Settings of an evaluation: its tasks, and the encoders and releases that are compared."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config import Settings
from pipeline.settings.encode import EncoderSettings


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
