"""Check in under a minute that a night can run.

manta preflight --config jobs/configs/quickstart.yaml
python -m jobs.preflight --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

from jobs.command import Answer, CommandRun, job_command, standalone
from jobs.layout import table


@job_command
def preflight(run: CommandRun) -> Answer:
    """Check in under a minute that a night can run.

    Checks the store (write, create once, delete), the encoder (loads, encodes), the columns and ids of a
    sample of the corpus, the proportions of tokens that the encoder does not know or truncates, disk space,
    and versions of packages. Asks every node of the cluster whether it has this program and the same
    versions, whether it reaches the stores, and how fast it encodes; prints a table of the nodes. Prints a
    remedy for each problem. Exit code 2 if there is any problem.
    """
    from pipeline.flows.night.planning.preflight import preflight as run_checks
    from pipeline.log import announce, counted

    checks = run_checks(run.job, run.stages, verbose=run.verbose)
    problems = [check for check in checks if check.problem]
    if problems:
        names = ", ".join(check.name for check in problems)
        announce(f"error: {len(problems)} of {counted(len(checks), 'check')} found a problem: {names}")
    lines = [
        f"{'PROBLEM' if check.problem else 'ok':<8} {check.name:<9} {check.problem or check.found}"
        for check in checks
    ]
    lines += [table(check.table[1:], check.table[0]) for check in checks if check.table]
    lines += [f"{'warning':<8} {check.name:<9} {sentence}" for check in checks for sentence in check.warnings]
    facts = {"status": "problems" if problems else "done", "checks": [vars(check) for check in checks]}
    return Answer(facts, "\n".join(lines), exit_code=2 if problems else 0)


if __name__ == "__main__":
    standalone(preflight)
