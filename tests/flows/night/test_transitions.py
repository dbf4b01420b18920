"""Whatever nights, promotions, rollbacks, holds, releases and prunes do, also two at once: the commits tell a
possible story, no release is published twice or over another, and no file is missing.

Two operations at once take turns: before every call of its store, an operation waits for its turn, and
hypothesis draws the order of the turns, so that it can repeat a race. The oracle is a replay of the commits.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pipeline.errors import PipelineError, PublishConflict, RootHeld
from pipeline.flows.night.approval import promote, start_waiting, withdraw
from pipeline.flows.night.previous_release import load_previous
from pipeline.settings import Job
from pipeline.store.files.lease import lease
from pipeline.store.files.local import LocalStore
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import READABLE, Gate, ReleaseManifest
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import size_faults
from pipeline.store.releases.waiting import (
    DIGITS,
    commits_since,
    describe_overtaking,
    is_overtaken,
    load_waiting,
)
from tests.store.candidates import candidate

PASSED = {READABLE: Gate(value=0, threshold=0, passed=True)}
Turns = list[bool]


class Baton:
    """Decides which of two actors may call its store next."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._ready = iter(turns), threading.Condition()
        self._running, self._turn = {False, True}, False

    def wait(self, actor: bool) -> None:
        """Wait for the actor's turn, then draw whose turn is next."""
        with self._ready:
            self._ready.wait_for(lambda: self._turn is actor or len(self._running) < 2, 30)
            self._turn = next(self._turns, not self._turn)
            self._ready.notify_all()

    def leave(self, actor: bool) -> None:
        """The actor has ended."""
        with self._ready:
            self._running.discard(actor)
            self._ready.notify_all()


class TakingTurns(LocalStore):
    """A store whose calls wait for their turn."""

    baton: Baton | None = None
    actor = False

    def _wait(self) -> None:
        if self.baton is not None:
            self.baton.wait(self.actor)

    def read(self, path: str) -> bytes:
        self._wait()
        return super().read(path)

    def write(self, path: str, data: bytes) -> None:
        self._wait()
        super().write(path, data)

    def create(self, path: str, data: bytes) -> bool:
        self._wait()
        return super().create(path, data)

    def list(self, prefix="", suffix=""):
        self._wait()
        return super().list(prefix, suffix)

    def delete(self, path: str) -> None:
        self._wait()
        super().delete(path)


def make_candidate(store: LocalStore, name: str, parent: ReleaseManifest) -> ReleaseManifest:
    """Return a candidate after a release, with one file that no other has."""
    content = f"canary of {name}".encode()
    own = FileRef.of(f"moments/canary-{name}.safetensors", content)
    store.write(own.path, content)
    return parent.model_copy(
        update={"release": 0, "parent": parent.release, "canary": own, "packages": {"name": name}}
    )


def night(store: LocalStore, name: str, *, approval: bool) -> str:
    """Make a candidate, and publish it or let it wait, as `publish_or_refuse` does."""
    releases = Releases(store)
    with lease(store):
        previous = load_previous(releases)
        assert previous.release is not None
        manifest = make_candidate(store, name, previous.release)
        pages = {"report.html": "candidate", "release.html": f"release-{manifest.id[:DIGITS]}"}
        try:
            if approval:
                releases.check_current(manifest)
                start_waiting(store, previous, manifest, pages, "approval")
                return "waits"
            return f"published {releases.publish(manifest, str).release}"
        except RootHeld:
            start_waiting(store, previous, manifest, pages, "held")
            return "waits"


def night_without_changes(store: LocalStore, _: str) -> str:
    """A night whose corpus is the current release's."""
    withdraw(Job(), store, load_previous(Releases(store)))
    return "unchanged"


def approve(store: LocalStore, _: str) -> str:
    """Promote the candidate that waits, or waited last."""
    record = load_waiting(store)
    if record is None:
        return "nothing waits"
    commit, is_new = promote(Releases(store), record.candidate, "Ann")
    assert commit.approval is not None
    assert commit.approval.candidate == record.candidate
    return f"published {commit.release}" if is_new else "promoted before"


def rollback(store: LocalStore, _: str) -> str:
    """Roll back to the oldest release."""
    releases = Releases(store)
    return f"commit {releases.rollback(releases.numbers()[0]).commit}"


def remove_old(store: LocalStore, _: str) -> str:
    """Remove what nobody needs. Only files of the operation that runs beside it are young."""
    prune(Releases(store), keep=1)
    return "pruned"


Operation = Callable[[LocalStore, str], str]
OPERATIONS: dict[str, Operation] = {
    "night": lambda store, name: night(store, name, approval=False),
    "night that needs an approval": lambda store, name: night(store, name, approval=True),
    "night without changes": night_without_changes,
    "promote": approve,
    "rollback": rollback,
    "hold": lambda store, _: f"commit {Releases(store).hold().commit}",
    "release": lambda store, _: "commit" if Releases(store).unhold() else "no hold",
    "prune": remove_old,
}
OFTEN = (*2 * ("night that needs an approval",), *2 * ("night",), *3 * ("promote",), "hold", "release")
NAMES = st.sampled_from([*OPERATIONS, *OFTEN])  # most runs publish candidates that waited


class Transitions(RuleBasedStateMachine):
    """Operations on one root, one after another or two at once."""

    counts: Counter[str] = Counter()
    """numbers of operations and outcomes of all runs"""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self.root = str(Path(self._folder.name, "root"))
        store = LocalStore(self.root)
        first = candidate(store, "first", None)
        Releases(store).publish(first.model_copy(update={"gates": PASSED}), str)
        self.names = (f"{number:04d}" for number in range(10_000))
        self.published = [1]

    def teardown(self) -> None:
        self._folder.cleanup()

    def _age(self) -> None:
        """Make all files older than the time for which prune keeps files of running nights."""
        for file in Path(self.root).rglob("*.*"):
            os.utime(file, (0, 0))

    def _run(self, operation: str, store: LocalStore) -> None:
        try:
            outcome = OPERATIONS[operation](store, next(self.names))
        except (PipelineError, PublishConflict) as error:
            if error.exit_code == 70:
                raise
            outcome = type(error).__name__
        self.counts[f"{operation}: {outcome.split()[0]}"] += 1
        if outcome.startswith("published"):
            self.published.append(int(outcome.split()[1]))

    @rule(operation=NAMES)
    def one(self, operation: str) -> None:
        self._age()
        store = LocalStore(self.root)
        record, commits = load_waiting(store), Releases(store).commits
        self._run(operation, store)
        if operation == "prune" and record is not None and not is_overtaken(commits_since(commits, record)):
            assert load_waiting(store) == record, "a candidate that waits is not pruned"

    @rule(operations=st.tuples(NAMES, NAMES), turns=st.lists(st.booleans(), min_size=20, max_size=120))
    def two_at_once(self, operations: tuple[str, str], turns: Turns) -> None:
        self._age()
        baton, failures = Baton(turns), list[BaseException]()

        def run(actor: bool, operation: str) -> None:
            store = TakingTurns(self.root)
            store.baton, store.actor = baton, actor
            try:
                self._run(operation, store)
            except BaseException as error:
                failures.append(error)
            finally:
                baton.leave(actor)

        threads = [
            threading.Thread(target=run, args=(actor, operation))
            for actor, operation in zip((False, True), operations, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if failures:
            raise failures[0]

    @invariant()
    def the_commits_tell_a_possible_story(self) -> None:
        """A release follows the one that is current, never a held one, and each is published once."""
        commits = Releases(LocalStore(self.root)).commits
        assert commits.numbers() == list(range(1, len(commits.numbers()) + 1))
        assert not commits.unreadable()
        current, held, approved = 0, False, list[str]()
        for commit in commits.history():
            if commit.kind == "publish":
                assert not held
                assert commit.release == commit.commit
                if (manifest := self._manifest(commit.commit)) is not None:
                    assert (manifest.parent or 0) == current, "it was computed from the current release"
            elif commit.kind in ("rollback", "hold"):
                assert not held
            else:
                assert held
            current, held = int(commit.release or 0), commit.kind == "hold"
            approved += [commit.approval.candidate] if commit.approval else []
        assert len(approved) == len(set(approved)), "no candidate is published twice"
        of_log = [commit.commit for commit in commits.history() if commit.kind == "publish"]
        assert sorted(self.published) == of_log, "whoever says that it has published has, and nobody else"

    def _manifest(self, number: int) -> ReleaseManifest | None:
        """Return a release that was not pruned."""
        releases = Releases(LocalStore(self.root))
        return releases.get(number) if number in releases.numbers() else None

    @invariant()
    def no_file_is_missing(self) -> None:
        """The releases that can be opened are complete, and so is the candidate that waits."""
        store = LocalStore(self.root)
        releases = Releases(store)
        for number in releases.numbers():
            assert not size_faults(store, releases.get(number))
        assert releases.current() is not None
        if (record := load_waiting(store)) is None:
            return
        since = commits_since(releases.commits, record)
        if not any(commit.kind == "publish" for commit in since):
            assert not size_faults(store, record.load_manifest(store))

    @invariant()
    def a_candidate_that_waits_can_be_published(self) -> None:
        """A promotion succeeds exactly if the list says so. It is tried on a copy of the root."""
        store = LocalStore(self.root)
        releases, record = Releases(store), load_waiting(store)
        if record is None or releases.commits.hold() is not None:
            return
        current = releases.current()
        assert current is not None
        since = commits_since(releases.commits, record)
        expected = describe_overtaking(record, since, current.release) is None
        with TemporaryDirectory() as folder:
            copy = LocalStore(folder)
            for entry in store.list():
                copy.write(entry.path, store.read(entry.path))
            try:
                is_new = promote(Releases(copy), record.candidate, "Ann").is_new
            except PipelineError:
                is_new = False
            assert is_new == expected
            now = Releases(copy).current()
            assert now is not None
            assert not is_new or now.packages == record.load_manifest(store).packages


@pytest.mark.slow
def test_no_order_of_transitions_loses_or_doubles_a_release(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.store.releases.release._RESERVATION_S", 0.02)
    Transitions.counts.clear()
    run_state_machine_as_test(
        Transitions, settings=settings(max_examples=30, stateful_step_count=20, deadline=None)
    )
    assert {name.partition(":")[0] for name in Transitions.counts} == set(OPERATIONS)
    assert Transitions.counts["promote: published"] > 5, Transitions.counts
