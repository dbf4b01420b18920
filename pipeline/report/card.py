"""The model card of a trained encoder: README.md of its folder, with the front matter that model hubs read."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from pipeline.report.signs import warnings
from pipeline.report.training import Report, options, two_digits

CARD = "README.md"
_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "manta")
_VERSIONS = ("manta-embeddings", "torch", "transformers", "tokenizers", "ray")


def card(report: Report) -> str:
    """Markdown. Nothing in it has a part in the encoder's space_id."""
    front = {
        "pipeline_tag": "sentence-similarity",
        "tags": list(_TAGS if report.product.elsewhere else _TAGS[1:]),
    }
    if report.product.elsewhere:
        front = {"library_name": "sentence-transformers"} | front
    parts = [_heading(report), _use(report), _measured(report), _training(report), _known(report)]
    return (
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n"
        + "\n\n".join(part for part in parts if part)
        + "\n"
    )


def write_card(report: Report, folder: Path) -> None:
    """Into a folder as `save_folder` left it."""
    (folder / CARD).write_text(card(report), encoding="utf-8")


def _heading(report: Report) -> str:
    product, rows = report.product, f"{report.rows:,} rows"
    facts = [
        (
            "Dimensions",
            f"{product.dim}"
            + (
                f"; the first {_listed(report.settings.matryoshka)} serve alone"
                if report.settings.matryoshka
                else ""
            ),
        ),
        ("Longest text", f"{product.max_length} tokens; what is beyond is cut"),
        ("Pooling", " + ".join(product.pooling)),
        ("Vectors", "of length one" if product.normalized else "not normalised: compare them by cosine"),
        (
            "Head",
            "a layer behind the pooling, trained with it"
            if product.head
            else "none: what the objective had beside the encoder belongs to the training alone",
        ),
        ("Prompt", _code(product.prompt)),
        ("Template", _code(product.template)),
        ("Space", _code(product.space_id)),
    ]
    said = f"Sentence vectors: {_code(_short(report.encoder))}, trained for {report.objective} on {rows}."
    return f"# {report.name}\n\n{said}\n\n" + _table(
        ("", ""), [(name, value) for name, value in facts if value]
    )


def _use(report: Report) -> str:
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
    said = (
        "\n\n`template_modules.py` in this folder reads the mask of its template there; embedding servers have no name for that."
        if product.trusted
        else ""
    )
    return f"## Use\n\n{manta}\n\n```python\n" + "\n".join(lines) + f"\n```{said}"


def _measured(report: Report) -> str:
    """The figures on dev."""
    if not report.dev:
        return "## Figures\n\nNothing was measured."
    rows = [(name, f"{line.step:,}", two_digits(line.dev)) for name, line in report.dev.items()]
    what = {
        "spearman": "Spearman x100 of cosines with people's scores, over all pairs",
        "accuracy": "Pairs that the classifier got right, in percent,",
    }
    said = f"{what[report.settings.dev.measure]} of {_code(_short(report.settings.dev.uri or 'dev'))}."
    return f"## Figures\n\n{said} The encoder has the weights after step {report.kept_step:,}.\n\n" + _table(
        ("weights", "step", report.measure), rows
    )


def _training(report: Report) -> str:
    train, order, optimizer = report.settings, report.settings.order, report.settings.optimizer
    objectives = "; ".join(
        term.name + (f" ({said})" if (said := options(term)) else "") for term in train.objective
    )
    files = ", ".join(f"{_code(_short(source.uri))} ({source.used:,} rows)" for source in report.sources)
    clip = "gradients as they are" if optimizer.clip is None else f"gradients cut to {optimizer.clip:g}"
    facts = [
        (
            "Start",
            f"{_code(_short(report.encoder))}{', new weights' if train.fresh else ''}, space {_code(report.start_space[:16])}",
        ),
        ("Rows", files),
        ("Objective", objectives),
        (
            "Steps",
            f"{report.steps:,} of {order.batch_rows} rows, {report.steps / report.steps_per_epoch:.3g} epochs",
        ),
        (
            "Optimizer",
            f"{optimizer.name}, learning rate {optimizer.learning_rate:g}, {train.schedule.name}, weight decay {optimizer.weight_decay:g}, {clip}",
        ),
        ("Warm-up", f"{train.schedule.warmup:g}" if train.schedule.warmup else ""),
        ("Precision", train.precision),
        ("Dropout", "as config.json says" if train.dropout is None else f"{train.dropout:g}"),
        ("Seeds", f"{train.seed}, of the rows {order.seed}"),
        ("Ran on", report.device),
        (
            "Versions",
            ", ".join(f"{name} {report.packages[name]}" for name in _VERSIONS if name in report.packages),
        ),
    ]
    return "## Training\n\n" + _table(("", ""), [(name, value) for name, value in facts if value])


def _known(report: Report) -> str:
    found = warnings(report)
    return "## What to know\n\n" + "\n".join(f"- {_plain(warning)}" for warning in found) if found else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(_lines([head, ["---"] * len(head), *rows]))


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def _short(uri: str) -> str:
    """The last part of a path, of a manifest the last three: a card travels, the folders of one machine do not. What is no path of this machine stays whole."""
    return (
        "/".join(uri.rstrip("/").split("/")[-3 if uri.endswith(".json") else -1 :])
        if uri.startswith(("/", "~", ".", "file:"))
        else uri
    )


def _code(text: str) -> str:
    """As code, whatever is in it; nothing of nothing."""
    if not text:
        return ""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _plain(text: str) -> str:
    """On one line, its signs taken as they are."""
    return " ".join(text.split()).replace("<", "&lt;").replace("`", "'")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
