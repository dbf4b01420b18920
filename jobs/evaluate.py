"""Measure the published release against the gates.

    manta evaluate --config jobs/configs/quickstart.yaml
    python -m jobs.evaluate --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

from jobs.command import Answer, Config, Json, Overrides, PrintConfig, Run, Verbose, run_job, standalone, table


def evaluate(config: Config = None, overrides: Overrides = None, print_config: PrintConfig = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Measure the published release against the gates.

    Recall against exact search over the release's own vectors, size, latency, row counts, unique ids, finite vectors. Exit code 5 when a gate is not met.
    """
    run_job(_evaluate, config, overrides, print_config, as_json, verbose)


def _evaluate(run: Run) -> Answer:
    from pipeline.flows.remeasure import remeasure

    made = remeasure(run.job, run.stages, verbose=run.verbose)
    refused = [name for name, gate in made.gates.items() if not gate.passed]
    rows = [(name, "passed" if gate.passed else "REFUSED", gate.sentence) for name, gate in made.gates.items()]
    facts = {
        "status": "refused" if refused else "done", "release": made.release, "refused": refused, "measured": made.measured,
        "gates": {name: gate.model_dump(mode="json") for name, gate in made.gates.items()},
    }
    return Answer(facts, f"release {made.release}\n" + table(rows, ("gate", "", "")), exit_code=5 if refused else 0)


if __name__ == "__main__":
    standalone(evaluate)
