"""Checkpoints are complete or ignored; the last and the best ones are kept."""

import json
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.settings.training import CheckpointSettings
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.train.checkpoint import Checkpoints, load_state

TOP = "run/checkpoints"


def state(step: int) -> dict[str, Any]:
    """Return a state with tensors of two types, random numbers and plain values."""
    weights = {"a": torch.arange(5.0) + step, "h": torch.ones(3, dtype=torch.bfloat16)}
    return {"step": step, "weights": weights, "random": [[torch.get_rng_state()]], "lr": 0.1, "none": None}


def saved(store: Store, scores: dict[int, float | None], **settings: Any) -> Checkpoints:
    """Save checkpoints with a score for each step; return a new reader of them."""
    checkpoints = Checkpoints(store, TOP, CheckpointSettings(**settings))
    for step, score in scores.items():
        checkpoints.save(step, state(step), score)
    checkpoints.close()
    return Checkpoints(store, TOP, CheckpointSettings(**settings))


def files_in(store: Store) -> list[tuple[int, str]]:
    """Return step and suffix of each file."""
    return [(int(Path(entry.path).name.split("-")[1]), Path(entry.path).suffix) for entry in store.list(TOP)]


def test_a_loaded_state_equals_the_saved_one(tmp_path: Path):
    last = saved(open_store(tmp_path), {7: 81.5}).last()
    (record,) = (Path(tmp_path, entry.path).read_text() for entry in open_store(tmp_path).list(TOP, ".json"))
    assert (json.loads(record)["step"], json.loads(record)["figure"]) == (7, 81.5)
    found = load_state(last)
    assert torch.equal(found["weights"]["a"], torch.arange(5.0) + 7)
    assert found["weights"]["h"].dtype == torch.bfloat16
    assert torch.equal(found["random"][0][0], torch.get_rng_state())
    assert (found["lr"], found["none"]) == (0.1, None)


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path):
    checkpoints = Checkpoints(open_store(tmp_path), TOP, CheckpointSettings())
    assert checkpoints.last() is None
    assert checkpoints.best() is None


def test_the_last_and_the_best_checkpoints_are_kept(tmp_path: Path):
    store = open_store(tmp_path)
    checkpoints = saved(store, {1: 80.0, 2: 90.0, 3: 85.0, 4: 90.0, 5: None, 6: 70.0}, keep=2, keep_best=1)
    assert files_in(store) == [(2, ".json"), (2, ".pt"), (5, ".json"), (5, ".pt"), (6, ".json"), (6, ".pt")]
    assert load_state(checkpoints.last())["step"] == 6
    assert load_state(checkpoints.best())["step"] == 2  # the earliest of equals


def flip_bit(content: bytes) -> bytes:
    return content[:100] + bytes([content[100] ^ 1]) + content[101:]


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "record changed"])
def test_a_damaged_checkpoint_is_skipped_and_logged(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = open_store(tmp_path)
    checkpoints = saved(store, {1: 1.0, 2: 2.0})
    suffix = "json" if damage == "record changed" else "pt"
    (file,) = (tmp_path / TOP).glob(f"step-00000002-*.{suffix}")
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-40])
    else:
        file.write_bytes(flip_bit(file.read_bytes()))
    assert load_state(checkpoints.last())["step"] == load_state(checkpoints.best())["step"] == 1
    assert "a checkpoint is skipped" in capsys.readouterr().err
    again = saved(store, {2: 2.0}, keep=1)  # the training has reached the step again
    assert load_state(again.last())["step"] == 2


def test_an_old_file_without_a_record_is_deleted(tmp_path: Path):
    store = open_store(tmp_path)
    for step, age_s in ((9, 0), (8, 7_200)):
        store.write(f"{TOP}/step-0000000{step}-0123456789ab.pt", b"the beginning of a checkpoint")
        os.utime(tmp_path / TOP / f"step-0000000{step}-0123456789ab.pt", times=2 * (time.time() - age_s,))
    checkpoints = saved(store, {1: None})
    assert load_state(checkpoints.last())["step"] == 1
    assert [step for step, _ in files_in(store)] == [1, 1, 9]


def test_a_repeated_step_replaces_its_checkpoint(tmp_path: Path):
    store = open_store(tmp_path)
    saved(store, {4: None})
    checkpoints = Checkpoints(store, TOP, CheckpointSettings())
    checkpoints.save(4, state(4) | {"ranks": 2})
    assert load_state(checkpoints.last())["ranks"] == 2
    assert len(store.list(TOP)) == 2
    checkpoints.close()


@pytest.mark.parametrize("later", ["save", "close"])
def test_an_error_of_the_writer_is_raised_by_the_next_save_or_close(later: str, tmp_path: Path):
    top = tmp_path / "file"
    checkpoints = Checkpoints(open_store(top), TOP, CheckpointSettings())
    top.write_text("not a folder")
    checkpoints.save(1, state(1))
    with pytest.raises(ConfigError, match=r"file: expected a writable folder, found .*File exists"):
        checkpoints.save(2, state(2)) if later == "save" else checkpoints.close()


class Clock:
    """Replacement of the module `time` with a settable monotonic clock."""

    now = 0.0
    time = staticmethod(time.time)

    def monotonic(self) -> float:
        return self.now


def test_a_checkpoint_is_due_by_steps_and_by_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = open_store(tmp_path)
    by_steps = Checkpoints(store, TOP, CheckpointSettings(steps=4, minutes=None))
    assert [step for step in range(1, 10) if by_steps.due(step)] == [4, 8]
    clock = Clock()
    monkeypatch.setattr("pipeline.train.checkpoint.time", clock)
    by_time = Checkpoints(store, TOP, CheckpointSettings(steps=None, minutes=10))
    clock.now += 599
    assert not by_time.due(1)
    clock.now += 2
    assert by_time.due(2)
    by_time.save(2, state(2))
    assert not by_time.due(3)
    by_time.close()


def test_checkpoints_are_written_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    may_write, save = threading.Event(), torch.save

    def save_when_allowed(*args: Any) -> None:
        assert may_write.wait(60)
        save(*args)

    monkeypatch.setattr(torch, "save", save_when_allowed)
    store = open_store(tmp_path)
    checkpoints = Checkpoints(store, TOP, CheckpointSettings())
    checkpoints.save(1, state(1))  # does not wait for the write
    assert store.list(TOP) == []
    may_write.set()
    checkpoints.close()
    assert load_state(checkpoints.last())["step"] == 1


def save_until_killed(folder: Path, first: int) -> None:
    checkpoints = Checkpoints(open_store(folder), TOP, CheckpointSettings())
    for step in range(first, first + 10_000):
        checkpoints.save(step, {"step": step, "weights": torch.full((500_000,), float(step))})


def test_after_a_kill_at_any_moment_a_complete_checkpoint_exists(tmp_path: Path):
    """The writers come from a fork server with all imports, so that they save at once and have no threads."""
    context, last = multiprocessing.get_context("forkserver"), 0
    context.set_forkserver_preload([__name__])
    for turn in range(8):
        writer = context.Process(target=save_until_killed, args=(tmp_path, last + 1))
        writer.start()
        while not any(step > last for step, kind in files_in(open_store(tmp_path)) if kind == ".json"):
            time.sleep(0.001)
        time.sleep(0.007 * turn)
        writer.kill()
        writer.join()
        found = load_state(Checkpoints(open_store(tmp_path), TOP, CheckpointSettings()).last())
        assert found["step"] > last
        assert torch.equal(found["weights"], torch.full((500_000,), float(found["step"])))
        last = found["step"]
