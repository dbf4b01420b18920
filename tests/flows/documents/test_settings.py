"""Settings that the documents name exist."""

import re

import pytest
from pydantic import BaseModel

from pipeline.settings import Job
from tests.conftest import ROOT
from tests.flows.documents.documents import DOCUMENTS

KEY = re.compile(r"(?<![\w./-])([a-z]+(?:\.[a-z0-9_]+)+)(?=[=` ,\]\n]|$)")


def named() -> list[str]:
    """Return `section.key` of every setting in code of the documents."""
    found = set()
    for file in DOCUMENTS:
        text = file.read_text(encoding="utf-8")
        code = re.findall(r"^```(?:bash)?\n(.*?)^```|`([^`\n]+)`", text, re.DOTALL | re.MULTILINE)
        found |= {key for parts in code for key in KEY.findall("".join(parts))}
    files = (".html", ".py", ".yaml")
    return sorted(key for key in found if key.split(".")[0] in Job.model_fields and not key.endswith(files))


@pytest.mark.parametrize("key", named())
def test_a_documented_setting_exists(key: str):
    section: object = Job()
    for name in key.split("."):
        if not isinstance(section, BaseModel):
            break  # a name of one's own, such as that of a variant
        assert name in type(section).model_fields, name
        section = getattr(section, name)


def test_documents_name_settings_of_a_night():
    assert {"corpus.uri", "whiten.mode", "train.chunk_rows"} <= set(named())
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= 250
