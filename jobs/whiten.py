"""Fit a whitening, or another transform, to the encoded corpus.

manta whiten --config jobs/configs/quickstart.yaml
python -m jobs.whiten --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

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
from jobs.layout import table

if TYPE_CHECKING:
    from pipeline.post.choose import Curve
    from pipeline.post.flow import FlowPoint


def whiten(
    config: Config = None,
    overrides: Overrides = None,
    print_config: PrintConfig = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Fit a whitening, or another transform, to the encoded corpus.

    Merges the moments of all units, fits what whiten.transform names, with k and remove chosen on a curve
    where they are not numbers, compares raw and transformed vectors, and stores the transform below
    transforms/. With whiten.write_vectors=true the transformed vectors are written as units too. Encodes
    first what is not encoded yet.
    """
    run_job(_whiten, config, overrides, print_config, as_json, verbose)


def _whiten(run: CommandRun) -> Answer:
    from pipeline.flows.night.stages import through_whitening

    store, decision, written = through_whitening(run.job, run.stages, verbose=run.verbose)
    from pipeline.post.chain import name_of, steps_of
    from pipeline.post.flow import Flow

    comparison, fitted = decision.comparison, decision.fitted
    training = [
        point
        for step in (steps_of(fitted) if fitted else ())
        if isinstance(step, Flow)
        for point in step.curve
    ]
    facts = {
        "status": "done",
        "root": store.uri,
        "used": decision.used,
        "sentence": decision.sentence,
        "kind": name_of(decision.fitted) if decision.fitted else None,
        "transform_id": decision.fitted.transform_id if decision.fitted else None,
        "transform": store.uri_of(decision.ref.path) if decision.ref else None,
        "raw": comparison.raw if comparison else None,
        "whitened": comparison.whitened if comparison else None,
        "metric": comparison.metric if comparison else None,
        "curves": [asdict(curve) for curve in decision.curves],
        "training": [asdict(point) for point in training],
        "units": [store.uri_of(unit.path) for unit in written.units] if written else [],
    }
    stored = [f"transform {facts['transform']}"] if decision.ref else []
    lines = [
        decision.sentence,
        *stored,
        *([f"{len(written.units)} units of transformed vectors"] if written else []),
    ]
    return Answer(
        facts,
        "\n".join([*lines, *map(_curve, decision.curves), *([_training(training)] if training else [])]),
    )


def _curve(curve: "Curve") -> str:
    """A table of the values that were tried, the chosen one marked."""
    rows = [
        (str(value), f"{figure:.4f}", "chosen" if value == curve.chosen else "")
        for value, figure in curve.points
    ]
    return "\n" + table(rows, (curve.setting, curve.metric, ""))


def _training(points: "list[FlowPoint]") -> str:
    """A table of how the training of a flow went."""
    rows = [
        (
            f"{point.step:,}",
            *(
                "" if figure is None else f"{figure:.4f}"
                for figure in (point.train, point.heldout, point.dev)
            ),
        )
        for point in points
    ]
    return "\n" + table(rows, ("step", "bits/dim trained", "held out", "dev"))


if __name__ == "__main__":
    standalone(whiten)
