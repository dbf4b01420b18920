"""Train an encoder on one's own text.

manta train --config jobs/configs/train/simcse-unsupervised.yaml train.data=sentences.parquet python -m
jobs.train --config jobs/configs/train/simcse-supervised.yaml train.data=triples.parquet train.workers=2
"""

from collections.abc import Mapping

from jobs.command import (
    Answer,
    CommandRun,
    Config,
    Json,
    Overrides,
    PrintConfig,
    Verbose,
    run_job,
    standalone,
)


def train(
    config: Config = None,
    overrides: Overrides = None,
    print_config: PrintConfig = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train an encoder on one's own text.

    Reads train.data (Parquet), starts from the encoder of the job, and trains it for train.objective on
    train.workers workers of the cluster. All that comes of it is in one folder below train.root: checkpoints,
    figures, and in the end the encoder, which `manta encode encoder.path=<that folder>/encoder` takes as it
    is. The same command goes on where an earlier one was stopped, also with another number of workers; one
    that is done says so.
    """
    run_job(_train, config, overrides, print_config, as_json, verbose)


def _train(run: CommandRun) -> Answer:
    from pipeline.flows.train.train import train as run_training

    trained = run_training(run.job, run.stages, verbose=run.verbose)
    result = trained.result
    facts = {
        "status": trained.status,
        "root": trained.run.store.uri,
        "encoder": trained.run.encoder,
        "report": trained.run.report,
        **result.model_dump(mode="json"),
        "seconds": run.stages.seconds(),
    }
    ended = [f"before the planned steps: {result.ended}"] if result.ended else []
    said = "was trained before; nothing to do" if trained.status == "unchanged" else "is trained"
    lines = [
        f"{trained.run.name} {said}: {result.steps:,} steps",
        *ended,
        *_figures(result.figures),
        f"encoder  {trained.run.encoder}",
        f"report   {trained.run.report}",
    ]
    return Answer(facts, "\n".join(lines))


def _figures(figures: Mapping[str, float]) -> list[str]:
    """The best figure on dev; without dev the loss of the same rows at both ends."""
    if "dev" in figures:
        return [f"dev  {figures['dev']:.4f}"]
    name = next((name for name in ("loss", "retrieval", "uniformity") if f"end_{name}" in figures), None)
    if name is None:
        return []
    ends = (
        f"{figures[f'start_{name}']:.4g} before the first step, {figures[f'end_{name}']:.4g} after the last"
    )
    return [f"{name}  {ends}, of the same {figures['same_rows']:,.0f} rows"]


if __name__ == "__main__":
    standalone(train)
