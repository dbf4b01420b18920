"""Check in under a minute that a night can run.

manta preflight --config jobs/configs/quickstart.yaml
python -m jobs.preflight --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

from jobs.command import Answer, CommandRun, job_command, standalone


@job_command
def preflight(run: CommandRun) -> Answer:
    """Check in under a minute that a night can run.

    The store (write, create once, delete), the encoder (loads, encodes), the corpus's columns and ids on a
    sample, how much of its texts the tokenizer knows and can take, disk space, versions of packages. Each
    problem comes with its remedy; exit code 2 when there is one.
    """
    from pipeline.flows.night.preflight import preflight as checks

    made = checks(run.job, run.stages, verbose=run.verbose)
    problems = [check for check in made if check.problem]
    lines = [
        f"{'PROBLEM' if check.problem else 'ok':<8} {check.name:<9} {check.problem or check.found}"
        for check in made
    ]
    lines += [f"{'warning':<8} {check.name:<9} {sentence}" for check in made for sentence in check.warnings]
    facts = {"status": "problems" if problems else "done", "checks": [vars(check) for check in made]}
    return Answer(facts, "\n".join(lines), exit_code=2 if problems else 0)


if __name__ == "__main__":
    standalone(preflight)
