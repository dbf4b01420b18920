"""Train an encoder on one's own text.

manta train --config jobs/configs/train/simcse-unsupervised.yaml train.data=sentences.parquet
python -m jobs.train --config jobs/configs/train/simcse-supervised.yaml train.data=triples.parquet
"""

from collections.abc import Mapping

from jobs.command import Answer, CommandRun, job_command, standalone
from pipeline.log import counted


@job_command
def train(run: CommandRun) -> Answer:
    """Train an encoder on one's own text.

    Reads train.data (Parquet), starts from the encoder of the job, and trains it for train.objective on
    train.workers workers of the cluster. One folder below train.root receives checkpoints, metrics, and in
    the end the encoder, which `manta encode encoder.path=<that folder>/encoder` can use unless it reads pairs
    of texts. A training that was stopped is continued by the same command, also with another number of
    workers; a finished one is not repeated.
    """
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
    done = "was trained before; nothing to do" if trained.status == "unchanged" else "is trained"
    lines = [
        f"{trained.run.name} {done}: {counted(result.steps, 'step')}",
        *([f"ended before the planned steps: {result.ended}"] if result.ended else []),
        *_scores(result.metrics),
        *_length_note(trained.run.encoder_length(), run.job.train.max_length),
        f"encoder  {trained.run.encoder}",
        f"report   {trained.run.report}",
    ]
    return Answer(facts, "\n".join(lines))


def _scores(scores: Mapping[str, float]) -> list[str]:
    """Return a line with the best score on dev; without dev, with the objective's metric before and after."""
    if "dev" in scores:
        return [f"dev  {scores['dev']:.4f}"]
    for name in ("loss", "retrieval", "uniformity"):
        if f"end_{name}" in scores:
            return [
                f"{name}  {scores[f'start_{name}']:.4g} before the first step, {scores[f'end_{name}']:.4g} "
                f"after the last, of the same {counted(int(scores['same_rows']), 'row')}"
            ]
    return []


def _length_note(encoder_tokens: int | None, training_tokens: int | None) -> list[str]:
    """Return a line on the tokens read of a text, if the encoder reads more than the training did."""
    if encoder_tokens is None or training_tokens is None or training_tokens >= encoder_tokens:
        return []
    return [f"reads    {encoder_tokens:,} tokens of a text; the training read {training_tokens:,}"]


if __name__ == "__main__":
    standalone(train)
