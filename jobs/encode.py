"""Encode the corpus into units of raw vectors.

manta encode --config jobs/configs/quickstart.yaml
python -m jobs.encode --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

from jobs.command import Answer, CommandRun, job_command, standalone
from pipeline.log import counted


@job_command
def encode(run: CommandRun) -> Answer:
    """Encode the corpus into units of raw vectors.

    Reads the corpus, puts invalid rows into quarantine, and encodes valid ones on the cluster. Units that an
    earlier run finished are reused. Vectors are plain Parquet below units/vectors.
    """
    from pipeline.flows.night.single_stage import encode_corpus
    from pipeline.text.tokens.coverage import token_counts, token_facts, token_warnings

    store, corpus, vectors = encode_corpus(run.job, run.stages, verbose=run.verbose)
    counts = [unit.counts for unit in vectors.units]
    # Tokens are counted over all units, reused ones included.
    tokens = token_counts(counts, new_units=counts)
    facts = {
        "status": "done",
        "root": store.uri,
        "rows": vectors.rows,
        "counts": {**corpus.counts, **vectors.counts()},
        "space_id": vectors.units[0].space_id,
        "units": [store.uri_of(unit.path) for unit in vectors.units],
        "quarantine": store.uri_of(corpus.quarantine.path) if corpus.quarantine else None,
        "tokens": token_facts(tokens),
        "warnings": token_warnings(tokens),
        "seconds": run.stages.seconds(),
    }
    return Answer(
        facts,
        f"{counted(vectors.rows, 'vector')} in {counted(len(vectors.units), 'unit')} below "
        f"{store.uri_of('units/vectors')}, {counted(corpus.counts['quarantined'], 'row')} quarantined"
        + (f" in {facts['quarantine']}" if facts["quarantine"] else ""),
    )


if __name__ == "__main__":
    standalone(encode)
