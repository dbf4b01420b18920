"""Answers of nodes become problems and warnings that name each node and what to do."""

import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from ray import exceptions

from pipeline.errors import ConfigError, TransientError
from pipeline.flows.workers import check_nodes as nodes
from pipeline.flows.workers import watch
from pipeline.flows.workers.check_nodes import Disk, NodeAnswer, NodeCheck, NodeFacts, software
from pipeline.flows.workers.nodes import Node
from pipeline.store.files.local import LocalStore

GOOD = NodeFacts(software(), {"/tmp": Disk(50, 100)}, {}, 1234.5)
NODE = Node(4.0, 1.0, 8e9)


def answer(name: str, facts: NodeFacts | None = GOOD, problem: str = "") -> NodeAnswer:
    return NodeAnswer(name, NODE, facts, problem, lasts=bool(problem))


def test_nodes_that_can_do_the_work_are_no_problem():
    answers = [answer("a"), answer("b")]
    assert nodes.find_problems(answers) == []
    assert nodes.find_warnings(answers, 60.0) == []
    header, *rows = nodes.as_table(answers)
    assert header[0] == "node"
    assert header[-1] == "tokens/s"
    assert {row[-1] for row in rows} == {"1,234"}
    assert {len(row) for row in rows} == {len(header)}


@pytest.mark.parametrize(
    ("bad", "setting", "found", "remedy"),
    [
        (answer("b", None, "ModuleNotFoundError: no pipeline"), "cluster", "node b: Module", "--working-dir"),
        (
            answer("b", replace(GOOD, software=software() | {"torch": "1.0", "faiss": "missing"})),
            "cluster",
            "node b: torch 1.0, faiss missing",
            "constraints.txt",
        ),
        (
            answer("b", replace(GOOD, unreachable={"release.root": nodes._NOT_SEEN})),
            "release.root",
            "node b: a file that this command wrote is not there",
            "that all of them share",
        ),
    ],
)
def test_a_node_that_cannot_is_named_with_what_to_do(bad: NodeAnswer, setting: str, found: str, remedy: str):
    [problem] = nodes.find_problems([answer("a"), bad])
    assert isinstance(problem, ConfigError)
    assert (problem.where, problem.found) == (setting, found) or problem.found.startswith(found)
    assert remedy in problem.remedy
    assert "node a" not in str(problem)
    assert len(nodes.as_table([bad])) == 2


def test_a_silent_node_and_a_full_disk_are_warnings():
    full = answer("full", replace(GOOD, disks={"/tmp/ray": Disk(4, 100)}))
    answers = [answer("a"), answer("silent", None), full]
    assert nodes.find_problems(answers) == []
    silent, nearly_full = nodes.find_warnings(answers, 60.0)
    assert "node silent gave no answer within 60 s" in silent
    assert "node full: the disk of /tmp/ray has 4 B free of 100 B" in nearly_full
    assert nodes.describe(answers[1])["problem"] == "no answer"


def test_a_folder_that_is_not_shared_is_found_and_not_made(tmp_path: Path):
    """The other node's folder has the same path; here another one stands for it."""
    with nodes.probe_in({"release.root": LocalStore(str(tmp_path / "root"))}) as probe:
        there = LocalStore(str(tmp_path / "there"))
        check = NodeCheck({"release.root": there}, probe)
        assert check.unreachable(there) == "a file that this command wrote is not there"
        assert not (tmp_path / "there").exists()
        assert check.unreachable(LocalStore(str(tmp_path / "root"))) == ""
    assert not list((tmp_path / "root").rglob("*-*")), "nothing is left"


@pytest.mark.parametrize(
    ("facts", "warning"),
    [
        (
            replace(GOOD, software=software() | {"Manta": "0123"}),
            "node b has Manta 0123, and this process Manta",
        ),
        (replace(GOOD, software=software() | {"pyarrow": "1.0"}), "node b has pyarrow 1.0, and this process"),
        (replace(GOOD, unreachable={"release.root": "SlowDown"}), "node b cannot use release.root: SlowDown"),
    ],
)
def test_a_node_that_can_work_otherwise_is_only_a_warning(facts: NodeFacts, warning: str):
    assert nodes.find_problems([answer("b", facts)]) == []
    [sentence] = nodes.find_warnings([answer("b", facts)], 60.0)
    assert warning in sentence


def test_an_installed_program_has_the_digest_of_its_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nodes, "_ROOT", tmp_path)
    (tmp_path / "manta").mkdir()
    (tmp_path / "errors.py").write_text("1")
    digests = []
    for file in ("notes.txt", "manta/encode.py", "errors.py"):
        (tmp_path / file).write_text("2")
        digests.append(software.__wrapped__()["Manta"])
    assert digests[0] == digests[1] != digests[2]


def _of_task(cause: Exception) -> exceptions.RayTaskError:
    kind = type(cause).__name__
    return exceptions.RayTaskError(
        "task", f"Traceback:\n{kind}: {cause}", cause, "ray::task", 1, "10.0.0.1"
    ).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "lasts"),
    [
        (_of_task(ModuleNotFoundError("No module named 'pipeline'")), True),
        (_of_task(RuntimeError("The remote function failed to import on the worker.")), True),
        (_of_task(AttributeError("Can't get attribute 'NodeCheck'")), True),
        (_of_task(ImportError("libtorch.so: failed to map segment from shared object")), False),
        (_of_task(TransientError("s3://b", "an answer", "SlowDown", "run again")), False),
        (exceptions.OutOfMemoryError("a worker was killed"), False),
        (exceptions.WorkerCrashedError(), False),
        (exceptions.NodeDiedError("the node died"), False),
        (exceptions.RuntimeEnvSetupError("no space"), False),
    ],
)
def test_only_a_program_that_cannot_be_loaded_ends_the_command(error: exceptions.RayError, lasts: bool):
    assert nodes._is_lasting(error) == lasts
    failed = NodeAnswer("b", NODE, None, nodes._reason(error), nodes._is_lasting(error))
    [found] = map(str, nodes.find_problems([failed]) if lasts else nodes.find_warnings([failed], 60.0))
    assert f"node b{': ' if lasts else ' could not be asked: '}{failed.problem}" in found
    assert "Error" in failed.problem
    assert "ray::" not in failed.problem


def test_a_store_that_does_not_answer_is_named_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    answers = threading.Event()

    class Silent(LocalStore):
        def exists(self, path: str) -> bool:
            return answers.wait(30)

    monkeypatch.setattr(nodes, "_STORE_S", 0.05)
    monkeypatch.setattr(nodes, "temp_folder", lambda: str(tmp_path))
    facts = NodeCheck({"release.root": Silent(str(tmp_path))}, "probe").facts()
    answers.set()
    assert facts.unreachable == {"release.root": "no answer within 0.05 s"}


def test_errors_of_deleting_the_probe_are_not_raised(tmp_path: Path):
    class Undeletable(LocalStore):
        def delete(self, path: str) -> None:
            raise TransientError(path, "an answer", "none", "run again")

    other = LocalStore(str(tmp_path / "other"))
    stores = {"release.root": Undeletable(str(tmp_path / "root")), "train.root": other}
    with pytest.raises(KeyError, match="own"), nodes.probe_in(stores) as probe:
        raise KeyError("own")
    assert not other.exists(probe)


def test_an_error_of_asking_nodes_that_joined_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    announced = list[str]()
    monkeypatch.setattr(watch, "announce", announced.append)
    asked = Future[None]()
    asked.add_done_callback(watch._announce_error)
    asked.set_exception(OSError("lost"))
    assert announced == ["warning: nodes that joined could not be asked: OSError: lost"]
