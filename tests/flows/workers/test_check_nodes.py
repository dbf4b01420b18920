"""Answers of nodes become problems and warnings that name each node and what to do."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.flows.workers import check_nodes as nodes
from pipeline.flows.workers.check_nodes import Disk, NodeAnswer, NodeCheck, NodeFacts, software
from pipeline.flows.workers.nodes import Node
from pipeline.store.files.local import LocalStore

GOOD = NodeFacts(software(), {"/tmp": Disk(50, 100)}, {}, 1234.5)
NODE = Node(4.0, 1.0, 8e9)


def answer(name: str, facts: NodeFacts | None = GOOD, problem: str = "") -> NodeAnswer:
    return NodeAnswer(name, NODE, facts, problem)


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
            answer("b", replace(GOOD, unreachable={"release.root": "it is not there"})),
            "release.root",
            "node b: it is not there",
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
