"""Tests of the workers of a night."""

import multiprocessing
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pipeline.flows.night import night_workers
from pipeline.index.search.open_in_child import end_idle_child, prepare_child
from pipeline.log import Stages
from pipeline.store.files.open_store import open_store


@pytest.mark.parametrize(("rows", "is_kept"), [(500_001, False), (0, True)])
def test_the_prepared_child_ends_if_the_night_is_not_small(
    make_job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, is_kept: bool
):
    end_idle_child()
    before = set(multiprocessing.active_children())
    monkeypatch.setattr(night_workers, "connect", lambda *_, **__: nullcontext())
    monkeypatch.setattr(night_workers, "count_unencoded_rows", lambda *_: 0)
    prepare_child()
    local, job = Mock(), make_job()
    with ExitStack() as connections:
        workers = night_workers.NightWorkers(
            job, open_store(tmp_path), Mock(), Stages(), False, local, connections
        )
        workers.for_corpus(SimpleNamespace(rows=rows))
    assert bool(set(multiprocessing.active_children()) - before) == local.close.called ^ True == is_kept
    end_idle_child()
