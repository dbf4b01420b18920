"""Fit a whitening, or another transform, to the encoded corpus.

manta whiten --config jobs/configs/quickstart.yaml
python -m jobs.whiten --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

from jobs.command import Answer, CommandRun, job_command, standalone
from jobs.layout import table
from pipeline.log import counted

if TYPE_CHECKING:
    from pipeline.transforms.choose import Curve
    from pipeline.transforms.flow import FlowPoint


@job_command
def whiten(run: CommandRun) -> Answer:
    """Fit a whitening, or another transform, to the encoded corpus.

    Merges the moments of all units, fits the transform that whiten.transform names, compares raw and
    transformed vectors, and stores the transform below transforms/. If whiten.k or whiten.remove is not a
    number, several values are scored and the best one is used. With whiten.write_vectors=true the transformed
    vectors are written as units too. Encodes the corpus first, unless an earlier run has done so.
    """
    from pipeline.flows.night.single_stage import fit_corpus_transform
    from pipeline.transforms.chain import name_of, steps_of
    from pipeline.transforms.flow import Flow

    store, decision, written = fit_corpus_transform(run.job, run.stages, verbose=run.verbose)
    comparison, fitted = decision.comparison, decision.fitted
    steps = steps_of(fitted) if fitted else ()
    training = [point for step in steps if isinstance(step, Flow) for point in step.curve]
    facts = {
        "status": "done",
        "root": store.uri,
        "used": decision.used,
        "sentence": decision.sentence,
        "kind": name_of(fitted) if fitted else None,
        "transform_id": fitted.transform_id if fitted else None,
        "transform": store.uri_of(decision.ref.path) if decision.ref else None,
        "raw": comparison.raw if comparison else None,
        "whitened": comparison.whitened if comparison else None,
        "metric": comparison.metric if comparison else None,
        "curves": [asdict(curve) for curve in decision.curves],
        "training": [asdict(point) for point in training],
        "units": [store.uri_of(unit.path) for unit in written.units] if written else [],
    }
    lines = [
        decision.sentence,
        *([f"transform {facts['transform']}"] if decision.ref else []),
        *([f"{counted(len(written.units), 'unit')} of transformed vectors"] if written else []),
        *map(_tuning_table, decision.curves),
        *([_training_table(training)] if training else []),
    ]
    return Answer(facts, "\n".join(lines))


def _tuning_table(curve: "Curve") -> str:
    """Format the score of each value of a setting as a table, with the chosen value marked."""
    rows = [
        (str(value), f"{score:.4f}", "chosen" if value == curve.chosen else "")
        for value, score in curve.points
    ]
    return "\n" + table(rows, (curve.setting, curve.metric, ""))


def _training_table(points: "list[FlowPoint]") -> str:
    """Format the losses of a flow's training as a table, in bits per dimension."""

    def cell(bits: float | None) -> str:
        return "" if bits is None else f"{bits:.4f}"

    rows = [(f"{point.step:,}", cell(point.train), cell(point.heldout), cell(point.dev)) for point in points]
    return "\n" + table(rows, ("step", "bits/dim trained", "held out", "dev"))


if __name__ == "__main__":
    standalone(whiten)
