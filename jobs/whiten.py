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
    from pipeline.post.choose import Curve
    from pipeline.post.flow import FlowPoint


@job_command
def whiten(run: CommandRun) -> Answer:
    """Fit a whitening, or another transform, to the encoded corpus.

    Merges the moments of all units, fits what whiten.transform names, with k and remove chosen on a curve
    where they are not numbers, compares raw and transformed vectors, and stores the transform below
    transforms/. With whiten.write_vectors=true the transformed vectors are written as units too. Encodes
    first what is not encoded yet.
    """
    from pipeline.flows.night.stages import through_whitening
    from pipeline.post.chain import name_of, steps_of
    from pipeline.post.flow import Flow

    store, decision, written = through_whitening(run.job, run.stages, verbose=run.verbose)
    comparison, fitted = decision.comparison, decision.fitted
    flows = [step for step in (steps_of(fitted) if fitted else ()) if isinstance(step, Flow)]
    training = [point for flow in flows for point in flow.curve]
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
        *map(_curve, decision.curves),
        *([_training(training)] if training else []),
    ]
    return Answer(facts, "\n".join(lines))


def _curve(curve: "Curve") -> str:
    """Return a table of the values that were tried, with the chosen one marked."""
    rows = [
        (str(value), f"{score:.4f}", "chosen" if value == curve.chosen else "")
        for value, score in curve.points
    ]
    return "\n" + table(rows, (curve.setting, curve.metric, ""))


def _training(points: "list[FlowPoint]") -> str:
    """Return a table of the training of a flow, in bits per dimension."""

    def shown(bits: float | None) -> str:
        return "" if bits is None else f"{bits:.4f}"

    rows = [
        (f"{point.step:,}", shown(point.train), shown(point.heldout), shown(point.dev)) for point in points
    ]
    return "\n" + table(rows, ("step", "bits/dim trained", "held out", "dev"))


if __name__ == "__main__":
    standalone(whiten)
