"""Training rows and other files that claims need, made from the evaluation data when a row asks for them."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import validated
from pipeline.flows.augment.augment import augment
from pipeline.flows.night.single_stage import count_corpus_tokens
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.settings.pairs import PairsSettings
from pipeline.settings.training import SourceSettings
from pipeline.text.pairs.build import build_rows, open_build
from tests.benchmarks.augmentations import write_word_vectors
from tests.benchmarks.triples import write_pairs_of_triples, write_triples

Read = dict[str, Any]
"""settings of one source in `train.data`"""
NLI_TEXTS, STS_TEXTS, COUNTS, WORDS = "nli-texts.parquet", "sts-texts.parquet", "counts", "words.bin"
_AUGMENTED = 12_000  # sentences, for trainings on variants
_ENTAILMENT, _NEUTRAL, _CONTRADICTION = range(3)


class Sources(NamedTuple):
    """Where rows come from: the evaluation data, the models of translation, and a folder for what is made."""

    data: Path
    models: Path | None
    made: Path
    start: str
    """path of the common start, whose language model guesses masked words"""


def open_sources(made: Path, start: str) -> Sources:
    """Open the sources that the environment names; files are made in the folder `made`."""
    models = os.environ.get("MANTA_EVAL_MODELS")
    made.mkdir(parents=True, exist_ok=True)
    return Sources(Path(os.environ["MANTA_EVAL_DATA"]), Path(models) if models else None, made, start)


@cache
def read_of(name: str, sources: Sources) -> Read | list[Read]:
    """Return the settings to read these rows by, after making them."""
    return SOURCES[name](sources)


def _table(file: Path, columns: dict[str, Sequence[Any]]) -> Read:
    """Write a table, unless an earlier run did."""
    if file.exists():
        return {"uri": str(file)}
    part = file.with_suffix(".part")
    pq.write_table(pa.table(columns), part, row_group_size=8_192)
    part.rename(file)
    return {"uri": str(file)}


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text and text.strip()]


def _texts(sources: Sources, name: str, texts: Callable[[], Iterable[str]]) -> Read:
    """Write distinct texts with an id, unless an earlier run did."""
    file = sources.made / name
    if file.exists():
        return {"uri": str(file)}
    distinct = _distinct(texts())
    return _table(file, {"id": [f"{number:06d}" for number in range(len(distinct))], "text": distinct})


def _column(sources: Sources, file: str, *columns: str) -> list[str]:
    table = pq.read_table(sources.data / file)
    return [text for column in columns for text in table[column].to_pylist()]


def nli_texts(sources: Sources) -> Read:
    """Write the sentences of SNLI, to fit transforms on."""
    return _texts(sources, NLI_TEXTS, lambda: _column(sources, "nli/snli.parquet", "premise", "hypothesis"))


def sts_texts(sources: Sources) -> Read:
    """Write the sentences of the STS sets, without scores."""
    files = [f"sts/{name}.parquet" for name in ("STS12", "STS13", "STS15", "STSB-train", "STSB-dev")]
    return _texts(
        sources,
        STS_TEXTS,
        lambda: [text for file in files for text in _column(sources, file, "sentence1", "sentence2")],
    )


@cache
def token_counts(sources: Sources) -> str:
    """Count the tokens of the STS sentences by the tokenizer of the common start; return the file."""
    settings = {
        "corpus": {"uri": sts_texts(sources)["uri"]},
        "encoder": {"path": sources.start},
        "release": {"root": str(sources.made / COUNTS)},
    }
    store, path, _ = count_corpus_tokens(validated(Job, settings, "counts"), Stages(), verbose=False)
    return store.uri_of(path)


def _pairs_of_label(name: str, *labels: int) -> Callable[[Sources], Read]:
    """Return a function that writes the pairs of SNLI with one of the labels as anchor and positive."""

    def write(sources: Sources) -> Read:
        table = pq.read_table(sources.data / "nli" / "snli.parquet")
        kept = table.filter(pa.array(np.isin(table["label"].to_numpy(), labels)))
        return _table(
            sources.made / f"{name}.parquet", {"anchor": kept["premise"], "positive": kept["hypothesis"]}
        )

    return write


def _questions(sources: Sources) -> Read:
    """Write the duplicate questions of Quora as anchor and positive."""
    table = pq.read_table(sources.data / "pairs" / "quora_dev.parquet", filters=[("label", "=", 1)])
    return _table(
        sources.made / "questions.parquet", {"anchor": table["sentence1"], "positive": table["sentence2"]}
    )


def _caption_pairs(sources: Sources) -> Read:
    """Write two captions of each picture as anchor and positive."""
    table = pq.read_table(sources.data / "captions" / "flickr30k_captions.parquet")
    by_number = dict(zip(table["caption_id"].to_pylist(), table["text"].to_pylist(), strict=True))
    images = dict.fromkeys(table["image_id"].to_pylist())
    pairs = [(by_number.get(f"{image}#1"), by_number.get(f"{image}#2")) for image in images]
    anchors, positives = zip(*(pair for pair in pairs if None not in pair), strict=True)
    return _table(sources.made / "caption-pairs.parquet", {"anchor": anchors, "positive": positives})


def _caption_documents(sources: Sources) -> Read:
    """Write the five captions of each picture as a document of five sentences."""
    table = pq.read_table(sources.data / "captions" / "flickr30k_captions.parquet")
    numbers = [int(name.partition("#")[2]) for name in table["caption_id"].to_pylist()]
    documents = table["image_id"].cast(pa.string())
    columns = {"text": table["text"], "document": documents, "position": numbers}
    return _table(sources.made / "caption-documents.parquet", columns)


def _next_sentences(sources: Sources) -> Read:
    """Write each sentence of running text with the next one of its document, as anchor and positive."""
    table = pq.read_table(sources.data / "running" / "documents.parquet", columns=["doc_id", "text"])
    documents, texts = table["doc_id"].to_numpy(), table["text"].to_numpy()
    first = np.flatnonzero(documents[1:] == documents[:-1])
    columns = {"anchor": texts[first], "positive": texts[first + 1]}
    return _table(sources.made / "next-sentences.parquet", columns)


def _three_tasks(sources: Sources) -> list[Read]:
    """Return the sources of USE's three tasks: captions of a picture in a row, pairs of them, inference."""
    names = {"sentences": "captions of pictures", "conversations": "captions", "inference": "nli"}
    return [{**SOURCES[rows](sources), "name": name} for name, rows in names.items()]


def _all_texts(sources: Sources) -> Read:
    """Write running text, Wikipedia sentences and captions."""
    files = ("running/documents.parquet", "wiki/sentences.parquet", "captions/flickr30k_captions.parquet")
    return _texts(
        sources,
        "all-texts.parquet",
        lambda: [text for file in files for text in _column(sources, file, "text")],
    )


def _triples(sources: Sources) -> Read:
    write_triples(sources.data / "nli" / "snli.parquet", sources.made)
    return {"uri": str(sources.made / "triples" / "train.parquet")}


def _pairs_of_triples(sources: Sources) -> Read:
    _triples(sources)
    return {"uri": str(write_pairs_of_triples(sources.made))}


def _triples_with_neutrals(sources: Sources) -> Read:
    source = SourceSettings(uri=str(sources.data / "nli" / "snli.parquet"))
    settings = PairsSettings(
        root=str(sources.made), name="neutrals", kind="nli", data=source, options={"neutral": True}
    )
    build_rows(open_build(settings), Stages())
    return {"uri": str(sources.made / "neutrals" / "train.parquet")}


def _variant(name: str, method: str, /, **options: Any) -> Callable[[Sources], Read]:
    """Return a function that makes a variant of Wikipedia sentences by `manta augment`."""

    def write(sources: Sources) -> Read:
        texts = _texts(
            sources,
            "sentences.parquet",
            lambda: _column(sources, "wiki/sentences.parquet", "text")[:_AUGMENTED],
        )
        return _augmented(sources, texts, name, {name: _augmenter(sources, method, options)}) | {
            "columns": {"anchor": "text", "positive": f"variant_{name}"}
        }

    return write


def _augmenter(sources: Sources, method: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an augmenter, with the files that it needs."""
    if method in ("synonym", "eda"):
        options = {**options, "synonyms": {"vectors": str(write_word_vectors(sources.made / WORDS))}}
    if method == "masked_lm":
        options = {**options, "model": sources.start}
    if method == "back_translation":
        assert sources.models is not None, "MANTA_EVAL_MODELS names the models of translation"
        legs = [
            {
                "path": str(sources.models / f"translation-{pair}"),
                "decoding": options,
            }
            for pair in ("en-de", "de-en")
        ]
        options = {"legs": legs}
    return {"method": method, "options": options}


def _augmented(sources: Sources, texts: Read, name: str, variants: dict[str, Any]) -> Read:
    settings = {
        "corpus": {"uri": texts["uri"]},
        "release": {"root": str(sources.made / "augmented")},
        "cluster": {"small_rows": 1_000_000_000},
        "augment": {"name": name, "variants": variants, "keep": {"identical": True, "duplicates": True}},
    }
    return {"uri": augment(validated(Job, settings, "augment"), Stages()).uri, "missing": "drop"}


def _review_pairs(name: str, count: int, **views: tuple[str, dict[str, Any]]) -> Callable[[Sources], Read]:
    """Return a function that makes two variants of `count` texts of CR, the target task of CERT here.

    Args:
        name: name of the variants.
        count: number of texts.
        views: method and options of each of the two variants.
    """

    def write(sources: Sources) -> Read:
        texts = pq.read_table(sources.data / "senteval" / "CR.parquet")["text"].to_pylist()
        chosen = _texts(sources, f"reviews-{count}.parquet", lambda: texts[:count])
        variants = {view: _augmenter(sources, *made) for view, made in views.items()}
        anchor, positive = (f"variant_{view}" for view in views)
        read = _augmented(sources, chosen, name, variants)
        return read | {"columns": {"anchor": anchor, "positive": positive}}

    return write


def _file(name: str, **columns: str) -> Callable[[Sources], Read]:
    return lambda sources: {"uri": str(sources.data / name), "columns": columns}


def _first_sentences(file: str, name: str) -> Callable[[Sources], Read]:
    return lambda sources: _texts(sources, name, lambda: _column(sources, file, "sentence1"))


SOURCES: dict[str, Callable[[Sources], Any]] = {
    "wikipedia": _file("wiki/sentences.parquet"),
    "documents": _file("running/documents.parquet", document="doc_id"),
    "all texts": _all_texts,
    "captions of pictures": _caption_documents,
    "caption texts": _file("captions/flickr30k_captions.parquet"),
    "next sentences": _next_sentences,
    "three tasks": _three_tasks,
    "translations": _file("parallel/multi30k.en-de.parquet", text="src", translation="tgt"),
    "nli": _file("nli/snli.parquet"),
    "triples": _triples,
    "pairs of triples": _pairs_of_triples,
    "triples with neutrals": _triples_with_neutrals,
    "entailments": _pairs_of_label("entailments", _ENTAILMENT),
    "neutrals": _pairs_of_label("neutral-pairs", _NEUTRAL),
    "contradictions": _pairs_of_label("contradictions", _CONTRADICTION),
    "all NLI pairs": _pairs_of_label("all-pairs", _ENTAILMENT, _NEUTRAL, _CONTRADICTION),
    "captions": _caption_pairs,
    "questions": _questions,
    "STS-B train": _file("sts/STSB-train.parquet"),
    "STS sentences": sts_texts,
    "first sentences": _first_sentences("sts/STSB-train.parquet", "first.parquet"),
    "first sentences, Chinese": _first_sentences("stsb-multi/STSB-zh-train.parquet", "first-zh.parquet"),
    "questions, Chinese": _first_sentences("pairs/afqmc_zh.parquet", "questions-zh.parquet"),
    "crop": _variant("crop", "crop", share=0.1),
    "delete one": _variant("delete", "delete", words=1),
    "synonym": _variant("synonym", "synonym", words=1),
    "masked words": _variant("masked", "masked_lm", share=0.15),
    "reviews, back-translated": _review_pairs(
        "cert-translated",
        600,
        greedy=("back_translation", {"method": "greedy"}),
        sampled=("back_translation", {"method": "sample", "top_k": 10}),
    ),
    "reviews, EDA": _review_pairs("cert-eda", 600, first=("eda", {}), second=("eda", {})),
}
