"""A corpus in a language that the tokenizer does not know is warned about from 5 % on, and refused by a gate.

This holds for every command that leads to a release.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import GatesRefused
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.planning.preflight import Check, preflight
from pipeline.flows.night.publish import NightOutcome
from pipeline.log import Stages
from pipeline.settings import Job
from tests.flows.conftest import sentences

pytestmark = pytest.mark.usefixtures("cluster")
Make = Callable[..., Job]
SETTINGS = ("whiten.mode=off", "gates.recall_at_10=", "index.kind=flat", "corpus.keep=[]")
CHINESE = "我们在学校学习"


def put(folder: Path, name: str, texts: list[str]) -> None:
    """Write one more file of the corpus."""
    pq.write_table(
        pa.table({"id": [f"{name}-{row}" for row in range(len(texts))], "text": texts}),
        folder / "corpus" / f"{name}.parquet",
    )


def chinese(count: int) -> list[str]:
    return [f"{CHINESE} {number}" for number in range(count)]


def run(make_job: Make, *overrides: str) -> NightOutcome:
    return nightly(make_job(*SETTINGS, *overrides), Stages())


def checks(job: Job) -> dict[str, Check]:
    return {check.name: check for check in preflight(job, Stages())}


def test_an_unknown_language_is_refused_and_named(
    make_job: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    put(tmp_path, "chinese", chinese(400))
    check = checks(make_job(*SETTINGS))["tokens"]
    assert "gates.unknown_tokens" in str(check.problem)
    assert "Chinese" in str(check.problem)
    assert check.warnings == (), "the problem is not repeated as a warning"
    with pytest.raises(GatesRefused, match=r"unknown to the encoder's tokenizer.*Chinese texts") as refused:
        run(make_job)
    gate = refused.value.gates["unknown_tokens"]
    assert 0.2 == gate["threshold"] < gate["value"] < 0.6
    page = next((tmp_path / "releases").glob("candidates/*/report.html")).read_text()
    assert "Chinese texts" in page
    assert "are unknown to the encoder" in page
    assert capsys.readouterr().err.count("warning:") == 1
    outcome = run(make_job, "gates.unknown_tokens=")
    assert outcome.status == "published"
    assert "unknown_tokens" not in outcome.facts["gates"]


def test_token_counts_cover_units_of_earlier_nights(make_job: Make, tmp_path: Path):
    first = run(make_job)
    assert first.facts["tokens"]["unknown_share"] < 0.05
    assert first.facts["warnings"] == []
    put(tmp_path, "chinese", chinese(20))
    second = run(make_job)
    tokens = second.facts["tokens"]
    assert (tokens["rows"], tokens["scripts"]["chinese"]["rows"]) == (420, 20)
    assert (
        tokens["tonight"]["unknown_share"]
        > 0.5
        > tokens["unknown_share"]
        > first.facts["tokens"]["unknown_share"]
    )
    assert tokens["scripts"]["latin"] == first.facts["tokens"]["scripts"]["latin"]
    proportions = [tokens["scripts"]["chinese"]["unknown_share"], tokens["tonight"]["unknown_share"]]
    percentages = [sentence.split(" of ")[0] for sentence in second.facts["warnings"]]
    assert percentages == [f"{proportion:.1%}" for proportion in proportions]
    assert run(make_job).facts["tokens"] == tokens  # an unchanged night reports the published counts
    # vectors of equal texts in another unit are copied, and their tokens counted too
    put(tmp_path, "again", chinese(20))
    third = run(make_job).facts
    assert third["counts"]["encoded"] == 0
    assert third["tokens"]["scripts"]["chinese"]["unknown"] == 2 * tokens["scripts"]["chinese"]["unknown"]


def test_units_without_token_counts_are_accepted(make_job: Make, tmp_path: Path):
    run(make_job)
    for file in (tmp_path / "releases" / "units" / "vectors").rglob("*.json"):
        record = json.loads(file.read_text())
        record.pop("seal")
        record["counts"] = {
            name: count for name, count in record["counts"].items() if not name.startswith("script_")
        }
        file.write_text(json.dumps(record) + "\n")
    put(tmp_path, "more", chinese(10))
    outcome = run(make_job)
    assert outcome.status == "published"
    assert outcome.facts["tokens"]["uncounted_rows"] == 400
    assert outcome.facts["gates"]["unknown_tokens"]["value"] < 0.05


def test_preflight_warns_of_unknown_tokens_and_truncated_texts(make_job: Make, tmp_path: Path):
    put(tmp_path, "chinese", chinese(30))
    put(tmp_path, "long", [20 * text for text in sentences(60)])
    check = checks(make_job(*SETTINGS))["tokens"]
    assert check.problem is None
    assert any("Chinese texts" in sentence and "unknown" in sentence for sentence in check.warnings)
    assert any("Latin texts" in sentence and "were truncated" in sentence for sentence in check.warnings)
    assert json.loads(json.dumps(check.facts))["scripts"]["latin"]["lost_share"] > 0.05


def test_a_corpus_truncated_almost_entirely_is_refused(make_job: Make):
    """Sentences of some 30 pieces by an encoder of 4, two of them its marks; nothing is said twice."""
    job = make_job(*SETTINGS, "encoder.max_length=4", "gates.lost_tokens=0.8")
    check = checks(job)["tokens"]
    assert "gates.lost_tokens" in str(check.problem)
    assert "raise encoder.max_length" in str(check.problem)
    assert check.warnings == ()
    with pytest.raises(
        GatesRefused, match=r"beyond the encoder's limit.*Latin texts, 100.0% of them cut"
    ) as refused:
        nightly(job, Stages())
    gate = refused.value.gates["lost_tokens"]
    assert 0.8 == gate["threshold"] < gate["value"] < 0.95
    outcome = run(make_job, "encoder.max_length=4")
    assert outcome.status == "published", "by default long documents are only warned of"
    assert any("raise encoder.max_length" in sentence for sentence in outcome.facts["warnings"])


def test_a_problem_of_the_corpus_is_reported_once(make_job: Make, tmp_path: Path):
    found = preflight(make_job("corpus.text=txet"), Stages())
    assert [check.name for check in found if check.problem] == ["corpus"]
    found = preflight(make_job(f"encoder.path={tmp_path / 'nowhere'}"), Stages())
    assert [check.name for check in found if check.problem] == ["encoder"]
