"""Find the template whose mask token represents texts best, without training the encoder.

manta search-template encoder.path=bert-base-uncased evaluate.tasks=tasks
python -m jobs.search_template --config jobs/configs/templates.yaml
"""

from datetime import datetime

from jobs.command import Answer, CommandRun, job_command, standalone
from jobs.layout import table


@job_command
def search_template(run: CommandRun) -> Answer:
    """Find the template whose mask token represents texts best, without training the encoder.

    Scores templates by the correlation of their vectors' cosines with human scores, on STS-B of
    evaluate.tasks or on the first sts task of evaluate.own, without training (PromptBERT). First the words
    between text and mask are chosen, then the words around the text. Prints a table for each step and writes
    a page. Scores are kept below evaluations/ of evaluate.root or release.root, and a command that was
    stopped continues from there.
    """
    from pipeline.flows.evaluate.template_search import search_template as search
    from pipeline.flows.evaluate.template_search import store_page
    from pipeline.report.template_search import sections

    result = search(run.job, run.stages, verbose=run.verbose)
    report = store_page(result, datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"))
    facts = {
        "status": "done",
        "template": result.best.template,
        "score": result.best.score,
        "encoder": result.encoder,
        "pairs": result.pairs,
        "source": result.source,
        "steps": [step.model_dump(mode="json") for step in result.steps],
        "report": report,
        "seconds": run.stages.seconds(),
    }
    tables = [
        f"{section.heading}\n{table(section.table[1:], section.table[0])}"
        for section in sections(result.steps)
    ]
    lines = (
        f"best    {result.best.template}  {result.best.score:.2f}, {result.pairs:,} pairs of {result.source}",
        f"report  {report}",
    )
    return Answer(facts, "\n\n".join([*tables, "\n".join(lines)]))


if __name__ == "__main__":
    standalone(search_template)
