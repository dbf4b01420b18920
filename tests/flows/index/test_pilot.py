"""`auto` measures kinds on a sample before it compresses vectors, once, and later nights keep the choice."""

from pathlib import Path

import pytest

from pipeline.flows.index import rules
from pipeline.flows.workers.workers import Workers
from pipeline.index.kind_recall import KindRecalls, required_of_codes
from tests.flows.index.extending import Chain

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def chain(cluster: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chain:
    """A root whose index is too large for the memory unless it is compressed."""
    monkeypatch.setattr("pipeline.index.plan.MAX_FLAT_VALUES", 0)
    overrides = ("index.memory_gib=3e-4", "index.nlist=16", "index.queries=100", "index.train_rows=2000")
    return Chain(tmp_path / "root", cluster, overrides).add(2_000).add(2_000)


def measurements(chain: Chain) -> list[Path]:
    """Return the files in which pilots stored their measurements."""
    return sorted(Path(chain.root, "indexes", "work").glob("pilot-*/*.json"))


def test_auto_builds_the_smallest_kind_whose_codes_suffice_and_keeps_it(chain: Chain):
    built = chain.night()
    [path] = [path for path in measurements(chain) if path.name == "kinds.json"]
    measured = KindRecalls.from_json(path.read_bytes(), "kinds").measured
    enough = {each.kind for each in measured if each.expected(4_000) >= required_of_codes(0.95)}
    assert built.kind in enough
    assert "a sample of 4,000 of them" in built.plan.why
    assert built.measured.recall["10"].high >= 0.95
    assert not list(Path(chain.root).glob("indexes/work/pilot-*/*.safetensors")), "the sample is deleted"
    before = {path: path.stat().st_mtime_ns for path in measurements(chain)}
    chain.add(200).kill(40)
    extended = chain.night()
    assert (extended.kind, extended.factory) == (built.kind, built.factory)
    assert rules.REBUILT not in [choice.chosen for choice in chain.choices]
    assert {path: path.stat().st_mtime_ns for path in measurements(chain)} == before
    chain.assert_sound(exhaustive=False)
