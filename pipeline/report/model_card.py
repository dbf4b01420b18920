"""Write the model card of a trained encoder: README.md of its folder, with the front matter of model hubs."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from pipeline.models.folder.reading import NO_LIMIT
from pipeline.report.formats import two_decimals
from pipeline.report.training import format_options
from pipeline.report.training_report import TrainingReport
from pipeline.report.training_warnings import training_warnings

CARD = "README.md"
_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "manta")
_PAIR_TAGS = ("sentence-transformers", "cross-encoder", "manta")
_VERSIONS = ("manta-embeddings", "torch", "transformers", "tokenizers", "ray")


def card(report: TrainingReport) -> str:
    """Return the model card as Markdown."""
    is_portable = report.trained_encoder.is_portable
    is_cross_encoder = report.trained_encoder.is_cross_encoder
    tags = _PAIR_TAGS if is_cross_encoder else _TAGS
    front_matter = {
        **({"library_name": "sentence-transformers"} if is_portable else {}),
        "pipeline_tag": "text-classification" if is_cross_encoder else "sentence-similarity",
        "tags": list(tags if is_portable else tags[1:]),
    }
    parts = [_heading(report), _usage(report), _scores(report), _training(report), _warnings(report)]
    return (
        f"---\n{yaml.safe_dump(front_matter, sort_keys=False)}---\n\n"
        + "\n\n".join(part for part in parts if part)
        + "\n"
    )


def write_card(report: TrainingReport, folder: Path) -> None:
    """Write the card into an encoder's folder; it does not change the encoder's space_id."""
    (folder / CARD).write_text(card(report), encoding="utf-8")


def _heading(report: TrainingReport) -> str:
    encoder, rows = report.trained_encoder, f"{report.rows:,} rows"
    prefixes = ", ".join(map(str, report.settings.matryoshka))
    dimensions = f"{encoder.dim}" + (f"; the first {prefixes} are usable alone" if prefixes else "")
    train_length = (
        "" if report.train_length is None else f"; in the training, texts over {report.train_length} were"
    )
    longest = (
        "no limit"
        if encoder.max_length >= NO_LIMIT
        else f"{encoder.max_length} tokens; longer texts are truncated"
    )
    facts = [
        ("Dimensions", dimensions),
        ("Longest text", f"{longest}{train_length}"),
        ("Pooling", " + ".join(encoder.pooling)),
        ("Vectors", "of length 1" if encoder.normalized else "not normalized: compare them by cosine"),
        (
            "Head",
            "a layer after the pooling, trained with the encoder"
            if encoder.head
            else "none: further layers of the objective were used in training only",
        ),
        ("Prompt", _code(encoder.prompt)),
        ("Template", _code(encoder.template)),
        ("Space", _code(encoder.space_id)),
    ]
    kind = "Cross-encoder of two texts" if encoder.is_cross_encoder else "Sentence vectors"
    text = f"{kind}: {_code(_shorten_path(report.encoder))}, trained for {report.objective} on {rows}."
    return f"# {report.name}\n\n{text}\n\n" + _table(("", ""), facts)


_PAIR_USAGE = """## Use

```python
from sentence_transformers import CrossEncoder

model = CrossEncoder("path/of/this/folder")
outputs = model.predict([("A sentence.", "Another one.")])       # the logits of the classes, or the score
```

It has no vectors of single texts."""


def _usage(report: TrainingReport) -> str:
    encoder = report.trained_encoder
    if encoder.is_cross_encoder:
        return _PAIR_USAGE
    manta = "```bash\nmanta encode encoder.path=path/of/this/folder corpus.uri=texts.parquet\n```"
    if not (encoder.is_portable or encoder.has_own_modules):
        return (
            f"## Use\n\n{manta}\n\nsentence-transformers does not compute its vectors: that library lacks "
            "a part of it, or reads texts in another way."
        )
    prompt = f", prompt={encoder.prompt!r}" if encoder.prompt else ""
    trust = ", trust_remote_code=True" if encoder.has_own_modules else ""
    lines = [
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("path/of/this/folder"{trust})',
        f'vectors = model.encode(["A sentence.", "Another one."]{prompt})       # (2, {encoder.dim})',
    ]
    text = (
        "\n\n`template_modules.py` in this folder implements its template there; "
        "embedding servers do not support it."
        if encoder.has_own_modules
        else ""
    )
    return f"## Use\n\n{manta}\n\n```python\n" + "\n".join(lines) + f"\n```{text}"


def _scores(report: TrainingReport) -> str:
    """Describe the scores on dev, and the scores of the trained model's predictions on dev and test."""
    parts = [_dev_scores(report), _final_scores(report)]
    return "## Scores\n\n" + ("\n\n".join(part for part in parts if part) or "Nothing was measured.")


def _dev_scores(report: TrainingReport) -> str:
    """Describe the scores on dev before the first step, with the best weights and with the last weights."""
    lines = report.dev_lines
    if lines is None:
        return ""
    rows = [(name, f"{line.step:,}", two_decimals(line.dev)) for name, line in lines.named().items()]
    scores, rows_name = ("predicted scores", "rows") if report.predicts else ("cosines", "pairs")
    metrics = {
        "spearman": f"Spearman x100 of {scores} with human scores, over all {rows_name}",
        "pearson": f"Pearson x100 of {scores} with human scores, over all {rows_name}",
        "accuracy": f"{rows_name.capitalize()} classified correctly, in percent,",
        "f1": "F1 x100 of the second class",
        "matthews": "Matthews' correlation x100 of predicted classes and labels",
        "log_likelihood": "Mean natural logarithm of the probability of masked words (perplexity: exp(-x))",
    }
    text = (
        f"{metrics[report.settings.dev.measure]} of {_code(_shorten_path(report.settings.dev.uri or 'dev'))}."
    )
    return f"{text} The encoder has the weights after step {report.kept_step:,}.\n\n" + _table(
        ("weights", "step", report.measure), rows
    )


def _final_scores(report: TrainingReport) -> str:
    """Describe the metrics of the trained model's predictions; empty if it predicts nothing."""
    if not report.scores:
        return ""
    uris = {"dev": report.settings.dev.uri, "test": report.settings.test.uri}
    files = ", ".join(f"{name} is {_code(_shorten_path(uris[name] or name))}" for name in report.scores)
    return f"All metrics of these weights; {files}:\n\n" + _table(
        ("metric", *report.scores), report.score_rows()
    )


def _training(report: TrainingReport) -> str:
    train, order, optimizer = report.settings, report.settings.order, report.settings.optimizer
    objectives = "; ".join(
        term.name + (f" ({text})" if (text := format_options(term)) else "") for term in train.objective
    )
    files = ", ".join(
        f"{_code(_shorten_path(source.uri))} ({source.used:,} rows)" for source in report.sources
    )
    clip = "gradients not clipped" if optimizer.clip is None else f"gradients clipped to {optimizer.clip:g}"
    facts = [
        (
            "Start",
            f"{_code(_shorten_path(report.encoder))}{', new weights' if train.fresh else ''}, "
            f"space {_code(report.start_space[:16])}",
        ),
        ("Rows", files),
        ("Objective", objectives),
        (
            "Steps",
            f"{report.steps:,} of {order.batch_rows} rows, "
            f"{report.steps / report.steps_per_epoch:.3g} epochs",
        ),
        (
            "Optimizer",
            f"{optimizer.name}, learning rate {optimizer.learning_rate:g}, {train.schedule.name}, "
            f"weight decay {optimizer.weight_decay:g}, {clip}",
        ),
        ("Warm-up", f"{train.schedule.warmup:g}" if train.schedule.warmup else ""),
        ("Precision", train.precision),
        ("Dropout", "that of config.json" if train.dropout is None else f"{train.dropout:g}"),
        ("Seeds", f"{train.seed}; {order.seed} for the order of rows"),
        ("Ran on", report.device),
        (
            "Versions",
            ", ".join(f"{name} {report.packages[name]}" for name in _VERSIONS if name in report.packages),
        ),
    ]
    return "## Training\n\n" + _table(("", ""), facts)


def _warnings(report: TrainingReport) -> str:
    # Each warning is on one line, without the "<" and backquotes that Markdown would interpret.
    lines = (" ".join(warning.split()) for warning in training_warnings(report))
    warnings = ["- " + line.replace("<", "&lt;").replace("`", "'") for line in lines]
    return "## What to know\n\n" + "\n".join(warnings) if warnings else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table; rows whose last cell is empty are left out."""
    lines = [head, ["---"] * len(head), *(row for row in rows if row[-1])]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)


def _shorten_path(uri: str) -> str:
    """Shorten a local path to its last part, or the path of a manifest to its last three.

    Cards are published, and the folders of one machine should not be part of them.
    """
    if not uri.startswith(("/", "~", ".", "file:")):
        return uri
    parts = uri.rstrip("/").split("/")
    return "/".join(parts[-3:] if uri.endswith(".json") else parts[-1:])


def _code(text: str) -> str:
    """Format a text as Markdown code; an empty text stays empty."""
    if not text:
        return ""
    return f"`` {text} ``" if "`" in text else f"`{text}`"
