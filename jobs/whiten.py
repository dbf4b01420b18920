"""Fit a whitening to the encoded corpus.

    manta whiten --config jobs/configs/quickstart.yaml
    python -m jobs.whiten --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

from jobs.command import Answer, Config, Json, Overrides, PrintConfig, Run, Verbose, run_job, standalone


def whiten(config: Config = None, overrides: Overrides = None, print_config: PrintConfig = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Fit a whitening to the encoded corpus.

    Merges the moments of all units, fits the transform (Su et al. 2021), compares raw and whitened vectors, and stores it below transforms/. With
    whiten.write_vectors=true the whitened vectors are written as units too. Encodes first what is not encoded yet.
    """
    run_job(_whiten, config, overrides, print_config, as_json, verbose)


def _whiten(run: Run) -> Answer:
    from pipeline.flows.night import through_whitening

    store, decision, written = through_whitening(run.job, run.stages, verbose=run.verbose)
    comparison = decision.comparison
    facts = {
        "status": "done", "root": store.uri, "used": decision.used, "sentence": decision.sentence,
        "transform_id": decision.fitted.transform_id if decision.fitted else None,
        "transform": store.uri_of(decision.ref.path) if decision.ref else None, "raw": comparison.raw if comparison else None,
        "whitened": comparison.whitened if comparison else None, "metric": comparison.metric if comparison else None,
        "units": [store.uri_of(unit.path) for unit in written.units] if written else [],
    }
    lines = [decision.sentence, *([f"transform {facts['transform']}"] if decision.ref else []), *([f"{len(written.units)} units of whitened vectors"] if written else [])]
    return Answer(facts, "\n".join(lines))


if __name__ == "__main__":
    standalone(whiten)
