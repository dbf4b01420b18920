"""Commands and Python blocks of the documents; NEEDS lists the commands that no test runs, with reasons."""

import re
import shlex
from pathlib import Path

from tests.conftest import ROOT

DOCUMENTS = (
    ROOT / "README.md",
    ROOT / ".github" / "CONTRIBUTING.md",
    ROOT / "infra" / "README.md",
    ROOT / "jobs" / "configs" / "README.md",
    ROOT / "pipeline" / "README.md",
    ROOT / "pipeline" / "store" / "README.md",
    ROOT / "pipeline" / "text" / "README.md",
    ROOT / "pipeline" / "models" / "README.md",
    ROOT / "pipeline" / "index" / "README.md",
    ROOT / "pipeline" / "flows" / "README.md",
    ROOT / "tests" / "benchmarks" / "README.md",
)
PROGRAMS = ("manta", "python", "pytest", "pip", "ray", "kubectl", "docker")
NEEDS = {
    "pip install": "the package index: tests/infra resolves the image's lines",
    "pytest": "is how this is run",
    "python -m tests.models.config_fields": "minutes: tests/models/test_config_fields.py compares its table",
    "python -m tests.alone": "the machine for itself: tests/test_alone.py runs a small one",
    "python -m tests.chaos": "minutes: tests/chaos plays a short one",
    "python -m tests.gpu": "a GPU: tests/gpu/test_gpu.py runs its parts small on the CPU",
    "python -m tests.benchmarks.": "evaluation data and an idle machine; that the module is there is tested",
    "ray get-auth-token": "writes into the home directory: tests/jobs/test_submit.py has its own",
    "ray start": "machines: tests/jobs/test_submit.py starts a head",
    "ray job": "a head: tests/jobs/test_submit.py submits to one",
    "ray list": "a head: tests/jobs/test_submit.py asks one for what it lists",
    "ray up": "a cloud",
    "ray down": "a cloud",
    "ray dashboard": "a cloud",
    "manta augment --config train/cert": "translation models: tests/flows/train/test_cert.py has small ones",
    "manta train --config train/cert": "the translations of the command before",
    "manta train --config train/glue-sentences": "the encoder of the command before",
    "kubectl": "a Kubernetes cluster: tests/infra checks the manifests",
    "docker build": "a registry: tests/infra reads the Dockerfile",
    "manta export ROOT pgvector": "a server: tests/flows/export has one",
    "manta serve": "a client: tests/jobs/test_serve.py is one",
    "manta query-log": "the log of a service: tests/jobs/test_query_log.py has some",
    "manta releases promote": "a candidate that waits: tests/flows/night/test_approval.py has some",
    "manta erase": "rows that the corpus lost: tests/flows/erase has some",
    "manta search ROOT -": "standard input: tests/jobs/test_search.py gives it",
    "manta evaluate evaluate.names=[senteval]": "the transfer tasks: tests/evaluate has small ones",
    "/etc/manta/": "the files of one machine: tests/infra/test_machine.py runs its recipes",
    "/var/lib/manta/": "the files of one machine: tests/infra/test_machine.py runs its recipes",
}
"""the beginnings of commands that no test of the documents runs, and folders that such commands name"""


def commands(file: Path) -> list[str]:
    """Return every command line of a document in order, from blocks and `code`; a && b are two."""
    text = file.read_text(encoding="utf-8")
    lines = [line for block in _plain_blocks(text) for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    found = []
    for code in (*lines, *inline):
        for part in re.split(r"\s&&\s", re.sub(r"\s+#\s.*", "", code).strip().removeprefix("$ ")):
            words = part.replace("\\|", "|").split()
            if len(words) > 1 and words[0] in PROGRAMS:
                found += _spelled(" ".join(words))
    return list(dict.fromkeys(found))


def shell_blocks(file: Path) -> list[str]:
    """Return the blocks of a document that consist of commands: those whose first line is one."""
    blocks = _plain_blocks(file.read_text(encoding="utf-8"))
    return [block for block in blocks if block.removeprefix("$ ").split()[0] in (*PROGRAMS, "curl")]


def _plain_blocks(text: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for language, block in blocks if language in ("", "bash")]


def _spelled(command: str) -> list[str]:
    """Expand `a b|c D` to `a b D` and `a c D`. In `manta releases list|show|rollback N ROOT` a verb has the
    arguments before the next bar.
    """
    if "|" not in command:
        return [command]
    head, *others = command.split("|")
    start, first = head.rsplit(" ", 1)
    last, end = re.fullmatch(r"(.*?)((?: [A-Z]+)?)", others[-1]).groups()
    return [f"{start} {verb}{end}" for verb in (first, *others[:-1], last)]


def need(command: str) -> str | None:
    """Return the reason why no test runs a command; None if a test runs it."""
    words = " ".join(shlex.split(command))
    return next(
        (
            reason
            for part, reason in NEEDS.items()
            if words.startswith(part) or (part.startswith("/") and part in words)
        ),
        None,
    )


def python_blocks(file: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", file.read_text(encoding="utf-8"), re.DOTALL)
