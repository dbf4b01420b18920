"""Train an encoder on your own text.

manta train --config jobs/configs/train/simcse-unsupervised.yaml train.data=sentences.parquet
python -m jobs.train --config jobs/configs/train/simcse-supervised.yaml train.data=triples.parquet
manta train --describe simcse
"""

import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.command import Answer, CommandRun, announce_unused_root, job_command, standalone
from jobs.layout import table
from pipeline.log import counted
from pipeline.settings.training import NEGATIVES

if TYPE_CHECKING:
    from pipeline.flows.train.train import CompletedTraining, TrainedSeeds


@job_command
def train(
    run: CommandRun,
    describe: Annotated[
        str | None,
        typer.Option(
            "--describe",
            metavar="NAME",
            help="Show an objective with its columns, options and defaults, and stop.",
        ),
    ] = None,
) -> Answer:
    """Train an encoder on your own text.

    Reads train.data (Parquet), starts from the encoder of the job, and trains it for train.objective on
    train.workers workers of the cluster. One folder below train.root receives checkpoints, metrics, and in
    the end the encoder, which `manta encode encoder.path=<that folder>/encoder` can use unless this encoder
    reads pairs of texts. The same command continues a training that was stopped, also with another number of
    workers, and does not repeat a finished one. With train.seeds, there is one training for each seed, and
    the answer has the median and the best of their scores.
    """
    if describe is not None:
        return _describe(describe)
    from pipeline.flows.train.train import train as run_training
    from pipeline.flows.train.train import train_seeds

    announce_unused_root(run.job, "train")
    if run.job.train.seeds:
        return _answer_of_seeds(run, train_seeds(run.job, run.stages, verbose=run.verbose))
    trained = run_training(run.job, run.stages, verbose=run.verbose)
    result = trained.result
    done = "was trained before; nothing to do" if trained.status == "unchanged" else "is trained"
    lines = [
        f"{trained.run.name} {done}: {counted(result.steps, 'step')}",
        *([f"ended before the planned steps: {result.ended}"] if result.ended else []),
        *_scores(result.metrics),
        *_predictions(result.metrics),
        *_length_note(trained.run.encoder_length(), run.job.train.max_length),
        f"encoder  {trained.run.encoder}",
        f"report   {trained.run.report}",
    ]
    return Answer({**_facts(trained), "seconds": run.stages.seconds()}, "\n".join(lines))


def _describe(name: str) -> Answer:
    """Describe an objective by its docstring, the columns that it reads, and its options."""
    from pipeline.objectives import OBJECTIVES
    from pipeline.objectives.build import options_schema

    objective, options = OBJECTIVES[name], options_schema(name)
    columns, optional = objective.roles({})
    facts = {
        "name": name,
        "description": inspect.getdoc(objective),
        "columns": columns,
        "optional": optional,
        "options": options,
    }
    rows = [
        (option, json.dumps(schema["default"]) if "default" in schema else "required", _type_name(schema))
        for option, schema in options.items()
    ]
    listed = [f"{role} (optional)" for role in optional if role not in NEGATIVES[2:]]
    further = f" to {NEGATIVES[-1]}" if NEGATIVES[-1] in optional else ""
    lines = [
        f"{facts['description']}\n",
        f"columns  {', '.join([*columns, *listed])}{further}",
        *(["", table(rows, ("option", "default", "type"))] if rows else ["no options"]),
    ]
    return Answer(facts, "\n".join(lines))


def _type_name(schema: Mapping[str, Any]) -> str:
    """Name the type of an option and its limits, from JSON Schema: "number > 0", "one of mean, sum"."""
    if "anyOf" in schema:
        return " or ".join(map(_type_name, schema["anyOf"]))
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "prefixItems" in schema:
        kinds = dict.fromkeys(map(_type_name, schema["prefixItems"]))
        return f"list of {len(schema['prefixItems'])}, each {' or '.join(kinds)}"
    if "items" in schema:
        return f"list, each {_type_name(schema['items'])}"
    limits = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return " ".join([schema["type"], *(f"{limits[key]} {schema[key]}" for key in limits if key in schema)])


def _facts(trained: "CompletedTraining") -> dict[str, Any]:
    """Return a completed training as a JSON object."""
    return {
        "status": trained.status,
        "root": trained.run.store.uri,
        "encoder": trained.run.encoder,
        "report": trained.run.report,
        **trained.result.model_dump(mode="json"),
        **trained.run.record().model_dump(mode="json", include={"lexical_overlap"}),
    }


def _answer_of_seeds(run: CommandRun, trained: "TrainedSeeds") -> Answer:
    """Return the scores over all seeds, and the encoders."""
    trainings, best, scores = trained.trainings, trained.best, trained.scores()
    facts = {
        "status": "trained" if any(each.status == "trained" for each in trainings.values()) else "unchanged",
        "best_seed": best,
        "scores": {
            name: {"median": score.median, "best": score.best, "by_seed": dict(score.by_seed)}
            for name, score in scores.items()
        },
        "trainings": [{"seed": seed, **_facts(each)} for seed, each in trainings.items()],
        "seconds": run.stages.seconds(),
    }
    rows = [
        (name.replace("_", " "), _cell(score.median), _cell(score.best), *map(_cell, score.by_seed.values()))
        for name, score in scores.items()
    ]
    header = ("score", "median", "best", *(f"seed {seed}" for seed in trainings))
    lines = [
        *([table(rows, header)] if rows else []),
        *([] if best is None else [f"best is seed {best}, which has the highest score on dev"]),
        *(f"seed {seed}  {each.run.encoder}" for seed, each in trainings.items()),
    ]
    return Answer(facts, "\n".join(lines))


def _cell(score: float | None) -> str:
    return "" if score is None else f"{score:.2f}"


def _predictions(metrics: Mapping[str, float]) -> list[str]:
    """Return a table with the metrics of the trained model's predictions on dev and test, if it has any."""
    measured = {
        file: {key.removeprefix(f"{file}_"): metrics[key] for key in metrics if key.startswith(f"{file}_")}
        for file in ("dev", "test")
    }
    measured = {file: scores for file, scores in measured.items() if scores}
    measures = dict.fromkeys(measure for scores in measured.values() for measure in scores)
    rows = [(name, *(_cell(scores.get(name)) for scores in measured.values())) for name in measures]
    return [table(rows, ("metric", *measured))] if rows else []


def _scores(scores: Mapping[str, float]) -> list[str]:
    """Return a line with the best score on dev, or without dev, a metric before and after the training."""
    if "dev" in scores:
        return [f"dev  {scores['dev']:.4f}"]
    for name in ("loss", "retrieval", "uniformity"):
        if f"end_{name}" in scores:
            return [
                f"{name}  {scores[f'start_{name}']:.4g} before the first step, {scores[f'end_{name}']:.4g} "
                f"after the last, on the same {counted(int(scores['same_rows']), 'row')}"
            ]
    return []


def _length_note(encoder_tokens: int | None, training_tokens: int | None) -> list[str]:
    """Return a line with both limits, if the encoder reads more tokens of a text than the training did."""
    if encoder_tokens is None or training_tokens is None or training_tokens >= encoder_tokens:
        return []
    return [f"reads    {encoder_tokens:,} tokens of a text; the training read {training_tokens:,}"]


if __name__ == "__main__":
    standalone(train)
