"""Count the tokens of a corpus, split by the encoder's own tokenizer.

manta count corpus.uri=docs encoder.path=bert-base-uncased
python -m jobs.count --config jobs/configs/quickstart.yaml
"""

from jobs.command import Answer, CommandRun, job_command, standalone
from pipeline.log import counted

_SHOWN = 10  # most frequent tokens that the answer names


@job_command
def count(run: CommandRun) -> Answer:
    """Count the tokens of a corpus, split by the encoder's own tokenizer.

    Reads the corpus and counts the tokens of its live rows on the cluster. The counts are a Parquet file
    below counts/, for encoder.frequencies: with encoder.exclude=[frequent] averages leave out the most
    frequent tokens of this corpus.
    """
    from pipeline.flows.night.single_stage import count_corpus_tokens

    store, path, table = count_corpus_tokens(run.job, run.stages, verbose=run.verbose)
    total = sum(table["count"].to_pylist())
    most = table[0].slice(0, _SHOWN).to_pylist()
    facts = {
        "status": "done",
        "root": store.uri,
        "counts": store.uri_of(path),
        "tokens": total,
        "different": len(table),
        "most_frequent": most,
        "seconds": run.stages.seconds(),
    }
    return Answer(
        facts,
        f"{counted(total, 'token')}, {len(table):,} different ones, in {facts['counts']}\n"
        f"the most frequent: {'  '.join(most)}",
    )


if __name__ == "__main__":
    standalone(count)
