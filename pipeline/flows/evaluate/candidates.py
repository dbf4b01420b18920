"""Candidates of an evaluation: encoders and releases, resolved to a vector space and a transform."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic import ValidationError

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError, SpaceMismatch
from pipeline.evaluate import EvaluationTask
from pipeline.evaluate.task import Similarity
from pipeline.evaluate.tfidf import TfIdf
from pipeline.flows.transform.train_flow import check_flow
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import announce_warnings, open_folder
from pipeline.models.folder.reading import task_prompts_of
from pipeline.settings import CandidateSettings, EncoderSettings, EvaluateSettings, FitSettings, Job
from pipeline.settings.evaluate import TARGET
from pipeline.settings.training import SourceSettings
from pipeline.store.files.base import Store
from pipeline.store.files.disk import describe_missing
from pipeline.store.files.open_store import open_store, store_of
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.release import Releases, no_release
from pipeline.store.releases.verify import check_files
from pipeline.text.rows.training_rows import open_training_rows
from pipeline.text.sources.sources import check_is_outside
from pipeline.transforms.chain import check_transform, name_of
from pipeline.transforms.transform import Transform, load_transform


@dataclass(frozen=True)
class ResolvedCandidate:
    """A candidate whose vector space is known: an encoder, and the transform applied to its vectors."""

    name: str
    encoder: EncoderSettings
    space_id: str
    dim: int
    """width of the raw vectors"""
    transform: FileRef | None = None
    """a copy of the transform in the store of the evaluations"""
    transform_id: str | None = None
    transform_name: str | None = None
    """name of the kind of transform, for people"""
    k: int | None = None
    """width of the transformed vectors"""
    fit: FitSettings | None = None
    """a transform to fit for each task; its `whiten` is set"""
    release: int | None = None
    root: str | None = None
    bytes: int = 0
    """size of the encoder's files"""
    similarity: Similarity = "cosine"
    """similarity that the encoder's folder names"""
    tfidf: TfIdf | None = None
    """the counts of TF-IDF, if that and not an encoder makes the (sparse) vectors; `encoder.path` then names
    the corpus of the counts"""

    prompt: str = ""
    """prompt before every text"""
    by_task: Mapping[str, "ResolvedCandidate"] = field(default_factory=dict)
    """the encoder with the folder's prompt for a kind of task, by kind"""
    of_queries: "ResolvedCandidate | None" = None
    """the encoder with the prompt of queries; None: queries have the usual prompt"""

    def for_task(self, kind: str) -> "ResolvedCandidate":
        """Return the candidate with the prompt for a kind of task; with a transform, keep its usual one."""
        return self if self.transform or self.fit else self.by_task.get(kind, self)

    @property
    def prompted(self) -> dict[str, "ResolvedCandidate"]:
        """The encoder with each prompt other than the usual one, keyed by the texts that get this prompt."""
        queries = {} if self.of_queries is None else {"queries of retrieval": self.of_queries}
        by_task = {kind: self.for_task(kind) for kind in self.by_task}
        return queries | {f"texts of {kind}": each for kind, each in by_task.items() if each is not self}

    @property
    def prompts(self) -> dict[str, str]:
        """All prompts, keyed by the texts that get them."""
        return {"texts": self.prompt} | {texts: each.prompt for texts, each in self.prompted.items()}

    @property
    def prompted_spaces(self) -> list[str]:
        """Ids of the spaces of the prompts that differ from the usual one."""
        return [each.space_id for each in self.prompted.values()]

    @property
    def id(self) -> tuple[str, str | None]:
        """Ids that distinguish candidates: of the space, and of the transform or the settings of its fits."""
        if self.fit is not None:
            return self.space_id, digest_of(self.fit.model_dump(mode="json"))
        return self.space_id, self.transform_id

    @property
    def overrides(self) -> dict[str, Any]:
        """Settings that override the settings of the encoder's folder."""
        return self.encoder.model_dump(mode="json", exclude_defaults=True, exclude={"path"})

    def facts(self) -> dict[str, Any]:
        """Return the candidate as a JSON object."""
        return {
            "name": self.name,
            "encoder": self.encoder.path,
            "overrides": self.overrides,
            "prompts": self.prompts,
            "release": self.release,
            "root": self.root,
            "space_id": self.space_id,
            "dim": self.dim,
            "bytes": self.bytes,
            "transform_id": self.transform_id,
            "transform": self.transform_name,
            "k": self.k,
            "fit": self.fit and self.fit.model_dump(mode="json", exclude_defaults=True),
        }


def evaluations_store(job: Job) -> tuple[Store, str]:
    """Return the store of the evaluations, and the name of the setting that decides where it is.

    Raises:
        ConfigError: it would be among the files of the corpus, all of which a night reads.
    """
    setting, root = "evaluate.root", job.evaluate.root
    if root is None:
        setting, root = "release.root", job.release.root
    check_is_outside(root, setting, job.corpus.uri, "corpus.uri")
    return open_store(f"{open_store(root).uri}/evaluations"), setting


def resolve_candidates(job: Job, store: Store) -> tuple[ResolvedCandidate, ...]:
    """Resolve the job's candidates, or the job's encoder if there are none. Copies transforms to `store`.

    Raises:
        ConfigError: two candidates have the same name.
        DataError: a release, a transform or the texts of TF-IDF are missing.
        ModelError: an encoder cannot be used.
        SpaceMismatch: a transform belongs to another space.
    """
    settings = job.evaluate.candidates or (CandidateSettings(),)
    candidates = [
        _resolve_tfidf(each)
        if each.tfidf is not None
        else _resolve_release(each, job, store)
        if each.release is not None
        else _resolve_encoder(each, job, store)
        for each in settings
    ]
    name_counts = Counter(each.name for each in settings if each.name)
    if repeated := [name for name, count in name_counts.items() if count > 1]:
        raise ConfigError(
            "evaluate.candidates",
            "names that distinguish candidates",
            f"{repeated[0]!r} twice",
            "name each once",
        )
    # Number the names that were derived from equal paths or releases.
    seen = Counter[str]()
    for number, each in enumerate(candidates):
        seen[each.name] += 1
        if seen[each.name] > 1:
            candidates[number] = replace(each, name=f"{each.name} ({seen[each.name]})")
    return tuple(candidates)


def _without_transform(name: str, encoder: EncoderSettings, folder: EncoderFolder) -> ResolvedCandidate:
    """Return an encoder as a candidate without a transform."""

    def with_prompt(prompt: str) -> ResolvedCandidate:
        changed = encoder.model_copy(update={"prompt": prompt, "query_prompt": None})
        return ResolvedCandidate(name, changed, open_folder(changed).space_id, folder.dim, prompt=prompt)

    announce_warnings(folder)
    tasks = task_prompts_of(encoder, folder.path)
    return ResolvedCandidate(
        name,
        encoder,
        folder.space_id,
        folder.dim,
        bytes=sum(folder.file(each).stat().st_size for each in folder.files),
        similarity=cast(Similarity, folder.similarity),
        prompt=folder.prompt,
        by_task={kind: with_prompt(prompt) for kind, prompt in tasks.items() if prompt != folder.prompt},
        of_queries=with_prompt(folder.query_prompt) if folder.query_prompt != folder.prompt else None,
    )


def _resolve_encoder(settings: CandidateSettings, job: Job, store: Store) -> ResolvedCandidate:
    """Resolve an encoder, with the transform of a file if one is set."""
    encoder = settings.encoder or job.encoder
    raw = _without_transform(settings.name or _encoder_name(encoder), encoder, open_folder(encoder))
    if settings.fit is not None:
        return _with_fit(raw, settings, job)
    if settings.transform is None:
        return raw
    where = f"transform {settings.transform}"
    transform_store, path = store_of(settings.transform)
    try:
        content = transform_store.read(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise DataError(
            where,
            "a file of a fitted transform",
            describe_missing(error),
            "give a file below transforms/ of a release root",
        ) from None
    try:
        transform = load_transform(content)
    except DataError as error:
        raise DataError(where, error.expected, error.found, error.remedy) from None
    if transform.space_id != raw.space_id:
        raise SpaceMismatch(
            where,
            f"a transform of space {raw.space_id}, that of encoder {encoder.path}",
            f"one fitted in space {transform.space_id}",
            "fit it on vectors of this encoder (manta whiten)",
        )
    named = raw if settings.name else replace(raw, name=f"{raw.name} + {name_of(transform)}")
    return _with_transform(named, transform, content, store)


def _with_fit(raw: ResolvedCandidate, settings: CandidateSettings, job: Job) -> ResolvedCandidate:
    """Add a transform that is fitted for each task. Raises ConfigError if a fit needs more than sentences."""
    assert settings.fit is not None, "the caller has checked it"
    whiten = settings.fit.whiten or job.whiten
    check_transform(whiten, indexed=False)
    check_flow(whiten.model_copy(update={"mode": "on"}), raw.dim)
    for name, value in (("k", whiten.k), ("remove", whiten.remove)):
        if isinstance(value, str):
            raise ConfigError(
                f"evaluate.candidates {raw.name}: whiten.{name}",
                "a number, because a transform is fitted on sentences without scores",
                value,
                "set a number, or null for all components",
            )
    on = "the target" if settings.fit.on == TARGET else settings.fit.on.rpartition("/")[2]
    return replace(
        raw,
        name=settings.name or f"{raw.name} + {whiten.transform} on {on}",
        fit=settings.fit.model_copy(update={"whiten": whiten}),
        transform_name=f"{whiten.transform}, fitted for each task on {on}",
    )


def with_similarity(settings: EvaluateSettings, candidates: Sequence[ResolvedCandidate]) -> EvaluateSettings:
    """Set the similarity, if it is null, to the one that the folders of all candidates name.

    Raises:
        ConfigError: the folders name different similarities.
    """
    if settings.similarity is not None:
        return settings
    first, *others = candidates
    for other in others:
        if other.similarity != first.similarity:
            raise ConfigError(
                "evaluate.similarity",
                "one similarity for all candidates",
                f"{first.similarity} for {first.name}, {other.similarity} for {other.name}",
                "set it to one of them",
            )
    return settings.model_copy(update={"similarity": first.similarity})


def check_sparse(
    candidates: Sequence[ResolvedCandidate],
    tasks: Sequence[EvaluationTask],
    similarity: Similarity | None,
    *,
    analyses: bool,
) -> None:
    """Raise ConfigError if sparse vectors of TF-IDF would have to be dense.

    Args:
        candidates: the candidates.
        tasks: the tasks to score them on.
        similarity: similarity of two vectors; None: the candidates' own, cosine for sparse ones.
        analyses: whether the vectors are analysed in other ways, too, as by --geometry.
    """
    found = [f"the {task.kind} task {task.name}" for task in tasks if not task.accepts_sparse]
    if similarity not in (None, "cosine"):
        found.append(f"evaluate.similarity={similarity}")
    if analyses:
        found.append("--geometry or --mask-words")
    for candidate in candidates:
        if candidate.tfidf is not None and found:
            raise ConfigError(
                f"evaluate.candidates {candidate.name}",
                "tasks of kind sts or retrieval by cosine, because TF-IDF has sparse vectors",
                found[0],
                "evaluate the others without this candidate",
            )


def _resolve_tfidf(settings: CandidateSettings) -> ResolvedCandidate:
    """Count the words of the candidate's corpus."""
    uri = str(settings.tfidf)
    rows = open_training_rows(SourceSettings(uri=uri), ("text",), ())
    texts = (text for table in rows.read(rows.spans(), ["text"]) for text in table["text"].to_pylist())
    tfidf = TfIdf.of_texts(texts, uri)
    return ResolvedCandidate(
        settings.name or f"TF-IDF of {uri.rstrip('/').rpartition('/')[2]}",
        EncoderSettings(path=uri),
        tfidf.space_id,
        len(tfidf.idf),
        tfidf=tfidf,
    )


def _resolve_release(settings: CandidateSettings, job: Job, store: Store) -> ResolvedCandidate:
    """Resolve a release: its copy of the encoder, the encoder's settings, and its transform."""
    commits = job.release.commits_root if settings.root is None else None
    releases = Releases.open(settings.root or job.release.root, commits)
    root = releases.store
    is_current = settings.release == "current"
    manifest = releases.current() if is_current else releases.get(int(settings.release or 0))
    if manifest is None:
        raise no_release(root, "run manta nightly first, or name an encoder in evaluate.candidates")
    check_files(root, [*manifest.encoder.references(), *filter(None, [manifest.transform])])
    where = root.uri_of(manifest.encoder.path)
    try:
        encoder = EncoderSettings.model_validate({**manifest.settings.get("encoder", {}), "path": where})
    except ValidationError as error:
        raise DataError(
            f"release {manifest.release}: settings.encoder",
            "settings that this version knows",
            str(error.errors()[0]["loc"]),
            "evaluate it with the version that wrote it",
        ) from None
    name = settings.name or f"release {manifest.release}"
    raw = _without_transform(name, encoder, open_folder(encoder))
    if raw.space_id != manifest.space_id:
        raise SpaceMismatch(
            where,
            f"space {manifest.space_id} of release {manifest.release}",
            f"space {raw.space_id}",
            "the encoder folder is not that of the release: restore it",
        )
    raw = replace(raw, release=manifest.release, root=root.uri)
    if manifest.transform is None:
        return raw
    content = manifest.transform.read(root)
    return _with_transform(raw, load_transform(content), content, store)


def _with_transform(
    raw: ResolvedCandidate, transform: Transform, content: bytes, store: Store
) -> ResolvedCandidate:
    """Add a transform to a candidate, and copy the transform's file to the store of the evaluations."""
    file = FileRef.of(f"transforms/{transform.transform_id[:24]}.safetensors", content, transform.fitted_rows)
    if not file.is_complete(store):
        store.write(file.path, content)
    return replace(
        raw,
        transform=file,
        transform_id=transform.transform_id,
        transform_name=name_of(transform),
        k=transform.k,
    )


def _encoder_name(encoder: EncoderSettings) -> str:
    """Return the last part of the encoder's path, and the settings that differ from its folder."""
    changed = encoder.model_dump(exclude_defaults=True, exclude={"path", "query_prompt", "frequencies"})
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in changed.items()}
    name = encoder.path.rstrip("/").rpartition("/")[2] or encoder.path
    return " ".join([name, *(f"{option}={'+'.join(map(str, value))}" for option, value in values.items())])
