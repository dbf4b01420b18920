"""All commands, files, settings, gates, exit codes and reasons that the runbook names exist."""

import re
from functools import reduce

from typer.main import get_command

from jobs.boundary import EXIT_CODES
from jobs.cli import app
from pipeline.settings import Job
from pipeline.store.releases.manifest import (
    READABLE,
    RELEVANCE,
    RELEVANCE_CHANGE,
    RELEVANCE_MRR,
    RELEVANCE_RECALL,
    USER_QUERY_RECALL,
)
from tests.infra.manifests import INFRA, ROOT, of_kind

TEXT = (INFRA / "README.md").read_text()
_PLAIN = re.sub(r"^```\w+\n.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)  # without blocks of Python
CODE = [
    *re.findall(r"`([^`\n]+)`", _PLAIN),
    *(line for block in re.findall(r"```\n(.*?)```", _PLAIN, re.DOTALL) for line in block.splitlines()),
]


def test_every_documented_command_exists():
    command = get_command(app)
    used = {
        tuple(found.split())
        for code in CODE
        for found in re.findall(r"\bmanta ((?:releases )?[a-z-]+)", code)
        if not code.startswith(("kubectl", "docker"))
    }
    assert {("preflight",), ("releases", "list"), ("releases", "show"), ("releases", "rollback")} <= used
    for words in used:
        reduce(lambda group, word: group.commands[word], words, command)


def test_every_documented_module_and_file_exists():
    modules = {found for code in CODE for found in re.findall(r"python -m (jobs\.\w+)", code)}
    assert modules
    for module in modules:
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module
    named = {
        found
        for code in CODE
        for found in re.findall(r"[\w./-]*\w\.(?:yaml|json|txt)\b|[\w./-]*Dockerfile", code)
    }
    assert len(named) > 8
    for file in named:
        assert (ROOT / file).is_file() or (INFRA / file).is_file(), file


def test_every_documented_setting_exists():
    dotted = {code for code in CODE if re.fullmatch(r"[a-z]+(\.[a-z0-9_]+)+", code)}
    settings = {key for key in dotted if key.split(".")[0] in Job.model_fields}
    assert len(settings) > 10
    for key in sorted(settings):
        reduce(lambda section, name: getattr(section, name), key.split("."), Job())


def test_documented_exit_codes_are_those_of_the_command_line():
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", TEXT, re.MULTILINE)
    assert {int(code) for code, _ in rows} == {int(code) for code in re.findall(r"\b(\d+) [a-z]", EXIT_CODES)}


def test_documented_gates_and_reasons_are_those_of_the_code():
    section = TEXT[TEXT.index("### MantaGateRefused") : TEXT.index("### MantaUnitsFailing")]
    gates = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^- (.*?):", section, re.MULTILINE))))
    judged = (ROOT / "pipeline" / "index" / "gates.py").read_text()
    judged = judged[judged.index("def judge") :]
    in_judge = set(re.findall(r'(?:gates\[|^        )"(\w+)"', judged, re.MULTILINE))
    compared = (ROOT / "pipeline" / "flows" / "night" / "gates" / "corpus_gates.py").read_text()
    of_the_corpus = set(re.findall(r'^ +yield \(?\s*"(\w+)",', compared, re.MULTILINE))
    assert len(of_the_corpus) == 6
    of_queries = {USER_QUERY_RECALL, RELEVANCE, RELEVANCE_RECALL, RELEVANCE_MRR, RELEVANCE_CHANGE}
    assert gates == in_judge | of_the_corpus | of_queries | {READABLE}
    source = "".join(file.read_text() for file in (ROOT / "pipeline").rglob("*.py"))
    for reason in ("duplicate_id", "unusable_vector"):
        assert f"`{reason}`" in TEXT
        assert f'"{reason}"' in source


def test_documented_resource_names_are_those_of_the_manifests():
    assert set(re.findall(r"cronjob[/ ](manta-\w+)", TEXT)) == {
        cron["metadata"]["name"] for cron in of_kind("CronJob").values()
    }
    secrets = set(re.findall(r"secret generic (\S+)", TEXT))
    keys = set(re.findall(r"--from-literal=([\w-]+)=", TEXT)) | {"endpoint-url"}
    asked = re.findall(
        r"secretKeyRef: \{name: (\S+), key: ([\w-]+)",
        "".join(file.read_text() for file in (INFRA / "kuberay").glob("*.yaml")),
    )
    assert {name for name, _ in asked} == secrets
    assert {key for _, key in asked} == keys
