"""Model card of a trained encoder: README.md of its folder, with the front matter of model hubs."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from pipeline.report.formats import two_digits
from pipeline.report.training import options
from pipeline.report.training_report import TrainingReport
from pipeline.report.training_warnings import training_warnings

CARD = "README.md"
_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "manta")
_VERSIONS = ("manta-embeddings", "torch", "transformers", "tokenizers", "ray")


def card(report: TrainingReport) -> str:
    """Write the model card as Markdown; it does not affect the encoder's space_id."""
    elsewhere = report.product.elsewhere
    front = {
        **({"library_name": "sentence-transformers"} if elsewhere else {}),
        "pipeline_tag": "sentence-similarity",
        "tags": list(_TAGS if elsewhere else _TAGS[1:]),
    }
    parts = [_heading(report), _use(report), _measured(report), _training(report), _known(report)]
    return (
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n"
        + "\n\n".join(part for part in parts if part)
        + "\n"
    )


def write_card(report: TrainingReport, folder: Path) -> None:
    """Write the card into a folder saved by `save_folder`."""
    (folder / CARD).write_text(card(report), encoding="utf-8")


def _heading(report: TrainingReport) -> str:
    product, rows = report.product, f"{report.rows:,} rows"
    usable = ", ".join(map(str, report.settings.matryoshka))
    dimensions = f"{product.dim}" + (f"; the first {usable} are usable alone" if usable else "")
    trained = (
        "" if report.train_length is None else f"; in the training, texts over {report.train_length} were"
    )
    facts = [
        ("Dimensions", dimensions),
        ("Longest text", f"{product.max_length} tokens; longer texts are truncated{trained}"),
        ("Pooling", " + ".join(product.pooling)),
        ("Vectors", "of length 1" if product.normalized else "not normalized: compare them by cosine"),
        (
            "Head",
            "a layer after the pooling, trained with the encoder"
            if product.head
            else "none: further layers of the objective were used in training only",
        ),
        ("Prompt", _code(product.prompt)),
        ("Template", _code(product.template)),
        ("Space", _code(product.space_id)),
    ]
    text = f"Sentence vectors: {_code(_short(report.encoder))}, trained for {report.objective} on {rows}."
    return f"# {report.name}\n\n{text}\n\n" + _table(("", ""), facts)


def _use(report: TrainingReport) -> str:
    product = report.product
    manta = "```bash\nmanta encode encoder.path=path/of/this/folder corpus.uri=texts.parquet\n```"
    if not (product.elsewhere or product.trusted):
        return f"## Use\n\n{manta}\n\nOther libraries have no name for a part of it, and do not load it."
    prompt = f", prompt={product.prompt!r}" if product.prompt else ""
    trust = ", trust_remote_code=True" if product.trusted else ""
    lines = [
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("path/of/this/folder"{trust})',
        f'vectors = model.encode(["A sentence.", "Another one."]{prompt})       # (2, {product.dim})',
    ]
    text = (
        "\n\n`template_modules.py` in this folder implements its template there; "
        "embedding servers do not support it."
        if product.trusted
        else ""
    )
    return f"## Use\n\n{manta}\n\n```python\n" + "\n".join(lines) + f"\n```{text}"


def _measured(report: TrainingReport) -> str:
    """Write the scores on dev."""
    if not report.dev:
        return "## Scores\n\nNothing was measured."
    rows = [(name, f"{line.step:,}", two_digits(line.dev)) for name, line in report.dev.items()]
    what = {
        "spearman": "Spearman x100 of cosines with human scores, over all pairs",
        "accuracy": "Pairs classified correctly, in percent,",
    }
    text = f"{what[report.settings.dev.measure]} of {_code(_short(report.settings.dev.uri or 'dev'))}."
    return f"## Scores\n\n{text} The encoder has the weights after step {report.kept_step:,}.\n\n" + _table(
        ("weights", "step", report.measure), rows
    )


def _training(report: TrainingReport) -> str:
    train, order, optimizer = report.settings, report.settings.order, report.settings.optimizer
    objectives = "; ".join(
        term.name + (f" ({text})" if (text := options(term)) else "") for term in train.objective
    )
    files = ", ".join(f"{_code(_short(source.uri))} ({source.used:,} rows)" for source in report.sources)
    clip = "gradients not clipped" if optimizer.clip is None else f"gradients clipped to {optimizer.clip:g}"
    facts = [
        (
            "Start",
            f"{_code(_short(report.encoder))}{', new weights' if train.fresh else ''}, "
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


def _known(report: TrainingReport) -> str:
    found = training_warnings(report)
    return "## What to know\n\n" + "\n".join(f"- {_plain(warning)}" for warning in found) if found else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table; rows whose last cell is empty are left out."""
    lines = [head, ["---"] * len(head), *(row for row in rows if row[-1])]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)


def _short(uri: str) -> str:
    """Shorten a local path to its last part, that of a manifest to its last three.

    A card is published, but the folders of one machine should not be.
    """
    return (
        "/".join(uri.rstrip("/").split("/")[-3 if uri.endswith(".json") else -1 :])
        if uri.startswith(("/", "~", ".", "file:"))
        else uri
    )


def _code(text: str) -> str:
    """Format as code; an empty text stays empty."""
    if not text:
        return ""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _plain(text: str) -> str:
    """Put text on one line, with Markdown characters escaped."""
    return " ".join(text.split()).replace("<", "&lt;").replace("`", "'")
