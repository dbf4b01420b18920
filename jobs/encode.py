"""Encode the corpus into units of raw vectors.

manta encode --config jobs/configs/quickstart.yaml
python -m jobs.encode --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

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


def encode(
    config: Config = None,
    overrides: Overrides = None,
    print_config: PrintConfig = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Encode the corpus into units of raw vectors.

    Reads the corpus, sets bad rows aside, and encodes on the cluster. Units that an earlier run finished are
    kept. Vectors are plain Parquet below units/vectors.
    """
    run_job(_encode, config, overrides, print_config, as_json, verbose)


def _encode(run: CommandRun) -> Answer:
    from pipeline.flows.night.stages import through_encoding
    from pipeline.text.tokens.coverage import token_counts, token_facts, token_warnings

    store, corpus, vectors = through_encoding(run.job, run.stages, verbose=run.verbose)
    facts = {
        "status": "done",
        "root": store.uri,
        "rows": vectors.rows,
        "counts": {**corpus.counts, **vectors.counts()},
        "space_id": vectors.units[0].space_id,
        "units": [store.uri_of(unit.path) for unit in vectors.units],
        "quarantine": store.uri_of(corpus.quarantine.path) if corpus.quarantine else None,
    }
    every = [unit.counts for unit in vectors.units]
    counts = token_counts(every, every)
    facts |= {"tokens": token_facts(counts), "warnings": token_warnings(counts)}
    facts["seconds"] = run.stages.seconds()
    text = (
        f"{vectors.rows:,} vectors in {len(vectors.units)} units below {store.uri_of('units/vectors')}, "
        f"{corpus.counts['quarantined']:,} rows quarantined"
    )
    return Answer(facts, text + (f" in {facts['quarantine']}" if facts["quarantine"] else ""))


if __name__ == "__main__":
    standalone(encode)
