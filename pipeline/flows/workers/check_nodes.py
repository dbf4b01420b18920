"""Before work begins, ask every node of a cluster, with a task on each, whether it can do the work."""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import pickle
import platform
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.daemon import in_daemon_thread
from pipeline.errors import ConfigError, ModelError, PipelineError, is_out_of_memory
from pipeline.flows.workers.nodes import Node, ResourceDemand, nodes_alive
from pipeline.flows.workers.ray_internals import temp_folder
from pipeline.flows.workers.worker_encoder import worker_encoder
from pipeline.log import announce, packages, size
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.base import Store
from pipeline.store.files.check_store import check_store
from pipeline.store.files.disk import temporary_files

BRIEF_S = 60.0  # time to answer before work begins; a process on an idle node starts in a few seconds
_FULLEST = 0.95  # proportion of a node's disk; if more is used, Ray starts no work on the node
_TEXT = "A sentence of some words, with a number that differs: "
_MISSING = "missing"
_ROOT = Path(__file__).parents[2]  # the package `pipeline`
_STORE_S = 20.0  # time for the stores to answer a node, so that it can name one that does not within BRIEF_S
_NOT_SEEN = "a file that this command wrote is not there"
_SAME = ("Python", "torch", "Ray")  # with others Ray cannot run the program, or vectors differ
_LASTING = (ImportError, AttributeError, pickle.UnpicklingError, ModelError)  # would end the work there too


class Disk(NamedTuple):
    """Space of the disk of a folder, in bytes."""

    free: int
    total: int


@dataclass(frozen=True)
class NodeFacts:
    """The findings of a node about itself."""

    software: Mapping[str, str]
    """versions by name"""
    disks: Mapping[str, Disk]
    """disks by folder: Ray's temporary folder, and the folder of temporary files"""
    unreachable: Mapping[str, str]
    """why a store cannot be used from there, by the setting that names it"""
    tokens_per_s: float | None = None
    """tokens of one buffer that a worker encodes in a second; None if it was not measured"""


class NodeAnswer(NamedTuple):
    """A node and its findings."""

    name: str
    node: Node
    facts: NodeFacts | None
    """None if the node gave no answer"""
    problem: str = ""
    """why the node gave no answer; empty if the time was over"""
    lasts: bool = False
    """whether the problem is that the node cannot load the program or the encoder; others may pass"""


@functools.cache
def software() -> dict[str, str]:
    """Return the versions that this process uses; Manta's is a digest of its code.

    The digest leaves the package `manta` out, which is in another folder where a wheel is installed.
    """
    code = hashlib.sha256()
    for file in sorted(_ROOT.rglob("*.py")):
        if _ROOT / "manta" not in file.parents:
            code.update(file.read_bytes())
    found = packages("torch", "faiss-cpu", "faiss-gpu", "pyarrow", "ray")
    other_faiss = "unknown" if importlib.util.find_spec("faiss") else _MISSING
    return {
        "Manta": code.hexdigest()[:8],
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": found.get("torch", _MISSING).partition("+")[0],  # without the kind of device
        "faiss": found.get("faiss-cpu") or found.get("faiss-gpu") or other_faiss,
        "pyarrow": found.get("pyarrow", _MISSING),
        "Ray": found.get("ray", _MISSING),
    }


@dataclass(frozen=True)
class NodeCheck:
    """The questions to a node. A value that can be pickled."""

    stores: Mapping[str, Store]
    """stores that the work reads and writes, by the setting that names each"""
    probe: str
    """path of a file that the driver has written to each store"""
    encoder: EncoderSettings | None = None
    """encoder with which to encode a buffer; None for a check in brief"""
    encode: EncodeSettings | None = None
    """settings of the encoding"""

    def facts(self) -> NodeFacts:
        """Return the findings of this process."""
        deadline = time.monotonic() + _STORE_S
        asked = {
            setting: in_daemon_thread(functools.partial(self.unreachable, store), "manta-store")
            for setting, store in self.stores.items()
        }
        folders = dict.fromkeys((temp_folder(), temporary_files()))
        disks = {folder: shutil.disk_usage(folder) for folder in folders}
        found = {setting: _sentence_by(deadline, answer) for setting, answer in asked.items()}
        return NodeFacts(
            software(),
            {folder: Disk(disk.free, disk.total) for folder, disk in disks.items()},
            {setting: sentence for setting, sentence in found.items() if sentence},
            self._tokens_per_s(self.encoder, self.encode) if self.encoder and self.encode else None,
        )

    def unreachable(self, store: Store) -> str:
        """Return why the store cannot be used from here; empty if it can."""
        try:
            if not store.exists(self.probe):  # before any write, which would make the folder here
                return _NOT_SEEN
            check_store(store, creates_once=False)
        except (OSError, PipelineError) as error:
            return getattr(error, "found", None) or f"{type(error).__name__}: {error}"
        return ""

    def _tokens_per_s(self, encoder_settings: EncoderSettings, settings: EncodeSettings) -> float:
        """Encode a buffer twice, and return the tokens per second of the second time."""
        encoder = worker_encoder(encoder_settings, settings)
        tokens = encoder.count_tokens([_TEXT]).lengths.sum()
        texts = [f"{_TEXT}{number}" for number in range(max(1, encoder.max_tokens // int(tokens)))]
        encoder.encode(texts)
        started = time.perf_counter()
        encoder.encode(texts)
        return len(texts) * int(tokens) / (time.perf_counter() - started)


def _sentence_by(deadline: float, answer: Future[str]) -> str:
    try:
        return answer.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:  # the store's own deadline may be later, see pipeline.store.files.retry
        return f"no answer within {_STORE_S:g} s"


def _answer(check: bytes) -> bytes:
    """Answer the questions. Check and answer are pickled, so that a node without Manta can get the task."""
    return pickle.dumps(pickle.loads(check).facts())


def ask_nodes(
    check: NodeCheck,
    within_s: float,
    *,
    demand: ResourceDemand | None = None,
    only: Collection[str] | None = None,
) -> list[NodeAnswer]:
    """Ask every node that has CPUs or GPUs for work.

    Args:
        check: the questions.
        within_s: time in which nodes must answer.
        demand: resources of an encode worker. Only a node on which one fits is asked to encode, and its task
            reserves the worker's GPUs.
        only: ids of the nodes to ask; None asks all.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = {
        node_id: (address, node)
        for node_id, (address, node) in nodes_alive().items()
        if (node.cpus or node.gpus) and (only is None or node_id in only)
    }
    task = ray.remote(_answer)
    fits = {id_: demand is not None and node.fit(demand) > 0 for id_, (_, node) in asked.items()}
    pickled = {True: pickle.dumps(check), False: pickle.dumps(dataclasses.replace(check, encoder=None))}
    pending = {
        node_id: task.options(
            name=NodeCheck.__name__,
            num_cpus=0,
            num_gpus=demand.gpus if demand and fits[node_id] else 0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
        ).remote(pickled[fits[node_id]])
        for node_id in asked
    }
    done = ray.wait(list(pending.values()), num_returns=len(pending), timeout=within_s)[0] if pending else ()
    alive, addresses = nodes_alive(), [address for address, _ in asked.values()]
    answers = []
    for node_id, (address, node) in asked.items():
        name = address if addresses.count(address) == 1 else f"{address} ({node_id[:8]})"
        facts, problem, lasts = None, "", False
        if pending[node_id] in done:
            try:
                facts = pickle.loads(ray.get(pending[node_id]))
            except (ray.exceptions.RayError, *_LASTING) as error:
                problem, lasts = _reason(error), _is_lasting(error)
        else:
            ray.cancel(pending[node_id], force=True)
        if node_id in alive:  # others were lost meanwhile
            answers.append(NodeAnswer(name, node, facts, problem, lasts))
    return answers


def _is_lasting(error: BaseException) -> bool:
    """Return whether the error says that a node cannot load the program or the encoder, ever."""
    cause = getattr(error, "cause", None) or error
    # Ray's error for a task whose function cannot be loaded
    without_program = isinstance(cause, RuntimeError) and "function failed to import" in str(cause)
    return (without_program or isinstance(cause, _LASTING)) and not is_out_of_memory(cause)


def _reason(error: BaseException) -> str:
    """Return an error as one line: the last of a traceback, or the first of another message."""
    from ray.exceptions import RayTaskError

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and isinstance(error, RayTaskError):
        return lines[-1]
    return ": ".join((type(error).__name__, *lines[:1]))


def describe(answer: NodeAnswer) -> dict[str, object]:
    """Return a node and its findings as metrics."""
    found = dataclasses.asdict(answer.facts) if answer.facts else {"problem": answer.problem or "no answer"}
    return {"node": answer.name, **dataclasses.asdict(answer.node), **found}


def as_table(answers: Sequence[NodeAnswer]) -> tuple[tuple[str, ...], ...]:
    """Return a table of the nodes, its header first."""
    header = ("node", *software(), "CPUs", "GPUs", "memory", "free", "stores", "tokens/s")
    return (header, *map(_row, answers))


def _row(answer: NodeAnswer) -> tuple[str, ...]:
    node, facts = answer.node, answer.facts
    resources = (f"{node.cpus:g}", f"{node.gpus:g}", size(node.memory))
    if facts is None:
        return (answer.name, *("-" for _ in software()), *resources, "-", answer.problem or "no answer", "-")
    free = ", ".join(f"{folder} {size(disk.free)}" for folder, disk in facts.disks.items())
    reached = ", ".join(f"not {setting}" for setting in facts.unreachable) or "ok"
    speed = "-" if facts.tokens_per_s is None else f"{facts.tokens_per_s:,.0f}"
    versions = (facts.software.get(name, _MISSING) for name in software())
    return (answer.name, *versions, *resources, free, reached, speed)


def find_problems(answers: Sequence[NodeAnswer]) -> list[ConfigError]:
    """Return the reasons why the nodes cannot do the work, each with the nodes that it applies to."""
    problems, here = [], {name: version for name, version in software().items() if name != "Manta"}
    if failed := [(each.name, each.problem) for each in answers if each.lasts]:
        problems.append(
            ConfigError(
                "cluster",
                "every node to run this program",
                _by_node(failed),
                "install Manta and its packages there, submit the job with its code (ray job submit "
                "--working-dir), or stop Ray on that node",
            )
        )
    facts = [(each.name, each.facts) for each in answers if each.facts is not None]
    versions = [(name, _list(_differences(each.software)[0])) for name, each in facts]
    if differ := [(name, sentence) for name, sentence in versions if sentence]:
        problems.append(
            ConfigError(
                "cluster",
                f"the versions of this process on every node ({_list(here)})",
                _by_node(differ),
                "install the same there (infra/constraints.txt), use one image for all nodes, or stop Ray on "
                "that node",
            )
        )
    for setting in dict.fromkeys(setting for _, each in facts for setting in each.unreachable):
        without = [(name, _NOT_SEEN) for name, each in facts if each.unreachable.get(setting) == _NOT_SEEN]
        if not without:
            continue
        problems.append(
            ConfigError(
                setting,
                "a store that every node can read and write",
                _by_node(without),
                "name a store that all nodes reach, such as s3://, or a folder that all of them share",
            )
        )
    return problems


def find_warnings(answers: Sequence[NodeAnswer], within_s: float) -> list[str]:
    """Return sentences about nodes that may be unable to do the work, or that do it otherwise."""
    warnings = [
        f"node {each.name} gave no answer within {within_s:g} s: is it busy, or its network slow?"
        for each in answers
        if each.facts is None and not each.problem
    ]
    for each in answers:
        if each.problem and not each.lasts:
            warnings.append(f"node {each.name} could not be asked: {each.problem}")
        other = _differences(each.facts.software)[1] if each.facts else {}
        if other:
            here = _list({name: software()[name] for name in other})
            warnings.append(f"node {each.name} has {_list(other)}, and this process {here}")
        for setting, sentence in each.facts.unreachable.items() if each.facts else ():
            if sentence != _NOT_SEEN:
                warnings.append(f"node {each.name} cannot use {setting}: {sentence}")
        for folder, disk in each.facts.disks.items() if each.facts else ():
            if disk.free < (1 - _FULLEST) * disk.total:
                warnings.append(
                    f"node {each.name}: the disk of {folder} has {size(disk.free)} free of {size(disk.total)}"
                    "; Ray starts no work on a node whose disk is nearly full: make room there"
                )
    return warnings


def _differences(there: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return a node's versions that differ from this process's: those that prevent work, and others."""
    here = software()
    differ = {name: there.get(name, _MISSING) for name in here if there.get(name, _MISSING) != here[name]}
    prevent = {
        name: version
        for name, version in differ.items()
        if here[name] != _MISSING and (name in _SAME or version == _MISSING)
    }
    return prevent, {name: version for name, version in differ.items() if name not in prevent}


def _list(versions: Mapping[str, str]) -> str:
    return ", ".join(map(" ".join, versions.items()))


def _by_node(found: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"node {name}: {sentence}" for name, sentence in found)


@contextlib.contextmanager
def probe_in(stores: Mapping[str, Store]) -> Iterator[str]:
    """Write a file to each store for the duration of the block, and yield its path."""
    path = f"candidates/probe-{uuid.uuid4().hex}"
    try:
        for store in stores.values():
            store.write(path, b"")
        yield path
    finally:
        for store in stores.values():
            with contextlib.suppress(OSError, PipelineError):  # an empty file may be left
                store.delete(path)


def check_nodes(stores: Mapping[str, Store]) -> None:
    """Check in brief that every node has this program, its versions and the stores.

    A node that gives no answer in time, or whose problem may pass, is named in a warning.

    Raises:
        ConfigError: a node cannot load the program, has versions with which work fails or vectors differ, or
            does not see the stores' files.
    """
    with probe_in(stores) as probe:
        answers = ask_nodes(NodeCheck(stores, probe), BRIEF_S)
    for sentence in find_warnings(answers, BRIEF_S):
        announce(f"warning: {sentence}")
    for problem in find_problems(answers):
        raise problem


def warn_of_unusable(nodes: Collection[str]) -> None:
    """Log a warning for each of the nodes, given by their ids, that cannot do the work."""
    answers = ask_nodes(NodeCheck({}, ""), BRIEF_S, only=nodes)
    for sentence in (*find_warnings(answers, BRIEF_S), *map(str, find_problems(answers))):
        announce(f"warning: {sentence}")
