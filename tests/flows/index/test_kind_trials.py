"""`auto` measures kinds on a sample before it compresses vectors, once, and later nights keep the choice."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.flows.index import rebuild_rules
from pipeline.flows.index.build import build_index
from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.workers.interface import Workers
from pipeline.index.measure.kind_recall import CodeRecall, KindRecalls, required_of_codes
from pipeline.log import Stages
from pipeline.store.files import s3
from pipeline.store.files.s3 import read_object
from tests.counted import CountedBucket, CountedWorkers, counted_bucket
from tests.flows.index.extending import Chain

_CHANGES = ("put_object", "delete_object")


@pytest.fixture(autouse=True)
def compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no index be small enough to stay uncompressed by its number of values alone."""
    monkeypatch.setattr("pipeline.index.build.index_shape.MAX_FLAT_VALUES", 0)


def new_chain(root: Path | str, workers: Workers) -> Chain:
    """Return a root whose index is too large for the memory unless it is compressed."""
    overrides = ("index.memory_gib=3e-4", "index.nlist=16", "index.queries=100", "index.train_rows=2000")
    return Chain(root, workers, overrides).add(2_000).add(2_000)


@pytest.fixture
def chain(cluster: Workers, tmp_path: Path) -> Chain:
    return new_chain(tmp_path / "root", cluster)


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
    assert rebuild_rules.REBUILT not in [choice.chosen for choice in chain.choices]
    assert {path: path.stat().st_mtime_ns for path in measurements(chain)} == before
    chain.assert_sound(exhaustive=False)


class _Killed(BaseException):
    """The process was killed."""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedBucket]:
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    with counted_bucket() as counted:
        yield counted


def killed_after(bucket: CountedBucket, changes: int) -> Callable[..., Any]:
    """Return a function that answers requests until a pilot has changed its folder `changes` times."""
    done = 0

    def answer(call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        nonlocal done
        if arguments.get("verb") in _CHANGES and "/pilot-" in arguments["Key"]:
            if done == changes:
                raise _Killed
            done += 1
        return bucket.answer(call, arguments)

    return answer


@contextmanager
def answered_by(answer: Callable[..., Any]) -> Iterator[None]:
    """Let `answer` answer the calls of S3 stores; ends before the fixture that patches the same function."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(s3, "run_call", answer)
        yield


def outcome(built: BuiltIndex, bucket: CountedBucket, root: str) -> tuple[list[str], list[CodeRecall]]:
    """Return the digests of the index, and the recalls that the pilot measured, without times."""
    (kinds,) = (
        bytes(content[:])
        for key, content in bucket.objects.items()
        if key.startswith(f"bucket/{root}/indexes/work/pilot-") and key.endswith("/kinds.json")
    )
    measured = KindRecalls.from_json(kinds, "kinds").measured
    untimed = [each.model_copy(update={"scan_ns": 0.0}) for each in measured]
    return [file.sha256 for file in built.index_files().files], untimed


def test_a_pilot_that_is_killed_at_every_change_of_its_folder_repeats_no_measurement(bucket: CountedBucket):
    workers = CountedWorkers(bucket)
    undisturbed = outcome(new_chain("s3://bucket/undisturbed", workers).night(), bucket, "undisturbed")
    chain, kills = new_chain("s3://bucket/killed", workers), 0
    bucket.log.clear()
    while True:
        # the sample and its record are stored by one run; of everything else a run stores one file
        with answered_by(killed_after(bucket, 2 if kills == 1 else 1)):
            try:
                built = chain.night()
            except _Killed:
                kills += 1
            else:
                break
    assert outcome(built, bucket, "killed") == undisturbed
    changes = Counter(each.key for each in bucket.log if each.verb in _CHANGES and "/pilot-" in each.key)
    (sample,) = (key for key in changes if key.endswith(".safetensors"))
    assert changes.pop(sample) == 3, "it is written by the first two runs, and deleted by the last one"
    assert set(changes.values()) == {1}
    assert kills == len(changes) + 1


def test_a_pilot_whose_sample_another_run_deletes_takes_the_result_of_that_run(bucket: CountedBucket):
    """The other run begins and ends before this one has read the sample for its first measurement."""
    workers = CountedWorkers(bucket)
    chain = new_chain("s3://bucket/root", workers)
    others = list[BuiltIndex]()

    def answer(call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        if call is read_object and "/pilot-" in arguments["Key"] and ".safetensors" in arguments["Key"]:
            with answered_by(bucket.answer):
                others.append(build_index(chain.context(Stages()), chain.vectors_to_index()))
        return bucket.answer(call, arguments)

    with answered_by(answer):
        assert chain.night() == others[0]
    assert len(others) == 1
