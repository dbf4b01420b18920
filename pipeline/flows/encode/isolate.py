"""Encode in a child process, so that only texts that kill it or make the encoder raise are quarantined.

Texts are encoded in chunks. If the child dies, the chunk is halved until a single text remains. A text is
rejected after the child died three times with this text alone, so a child that is killed once or twice from
outside costs time, but no row. A child that hangs is killed. If the encoder raises, the child halves the
chunk itself and continues. A vector does not depend on the other texts of its chunk, so the vectors equal
those of a unit that is encoded without a child process.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.errors import MODEL_FAILURES, ModelError
from pipeline.flows.workers.stall import CpuMeter, StallTimer
from pipeline.keep_alive import on_keep_alive
from pipeline.models.folder.folder import open_folder
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings
from pipeline.text.tokens.tokens import TokenCounts

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder
    from pipeline.models.inference.windows import EncodedBatch

CHUNK = 512  # texts; nine halvings isolate one
MAX_DEATHS = 3  # a text is at fault if this many child processes died while they encoded it alone
_POLL_S = 0.5  # time between two checks of the child's progress
# If more texts of a unit than this, and more than 1 %, are rejected, the encoder is at fault, not the texts.
_MAX_REJECTED = 16
_READY = "ready"  # file that the child makes when its encoder is loaded
_ALIVE = "alive"  # file that the child touches after each buffer and each keep-alive signal
_FIELDS = ("vectors", "bad", *TokenCounts._fields)  # arrays in the file of a chunk


class Rejection(NamedTuple):
    """Why a text has no vector: the reason for its quarantine, with details."""

    reason: str
    detail: str


@dataclass
class IsolatedEncoder:
    """Encoder that runs in a child process."""

    encoder: EncoderSettings
    """settings of the encoder"""
    encode: EncodeSettings
    """settings of the encoding"""
    device: str
    """device of the encoder"""
    scratch: Path
    """an empty directory"""
    patience_s: float = ClusterSettings().patience_s
    """seconds without progress of the child before it is killed"""
    rejected: dict[int, Rejection] = field(default_factory=dict)
    """rejected texts by row, filled as batches are yielded"""

    def encode_stream(
        self, batches: Iterable[pa.Array], on_rows: Callable[[int], None] = lambda rows: None
    ) -> "Iterator[EncodedBatch]":
        """Yield one EncodedBatch per batch, in order. Rejected texts are marked as bad rows.

        Args:
            batches: arrays of strings.
            on_rows: called with the number of rows done, whenever the child makes progress.
        """
        lists = [batch.to_pylist() for batch in batches]
        texts = [text for batch in lists for text in batch]
        (self.scratch / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        self._encode_all(len(texts), on_rows)
        starts = itertools.accumulate(map(len, lists), initial=0)
        yield from itertools.starmap(self._load_rows, itertools.pairwise(starts))

    def _encode_all(self, count: int, on_rows: Callable[[int], None]) -> None:
        """Encode all texts, each chunk into a file. Whenever a child ends, start the next one."""
        pending = deque((start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))
        deaths: Counter[int] = Counter()  # row -> child processes that died while they encoded this row alone
        while pending:
            end = self._run_child(list(pending), _max_rejected(count), on_rows)
            for row, error in _load_errors(self.scratch).items():
                self._reject(row, Rejection("encoder_error", error), count)
            while pending and _chunk_file(self.scratch, *pending[0]).exists():
                pending.popleft()
            if not pending:
                return
            start, stop = pending.popleft()
            if stop - start > 1:
                middle = (start + stop) // 2
                pending.extendleft([(middle, stop), (start, middle)])
                continue
            deaths[start] += 1
            if deaths[start] < MAX_DEATHS:
                pending.appendleft((start, stop))
            else:
                detail = f"alone in a process, {MAX_DEATHS} times: {end.detail}"
                self._reject(start, Rejection(end.reason, detail), count)

    def _run_child(
        self, chunks: Sequence[tuple[int, int]], max_errors: int, on_rows: Callable[[int], None]
    ) -> Rejection:
        """Encode the chunks in a child, in order, until it ends.

        The child ends by itself when the encoder has raised for more than `max_errors` texts.

        Returns:
            How the child ended, as a rejection of the next unfinished text. It applies if the chunk of that
            text has no other text.
        """
        job = {
            "encoder": self.encoder.model_dump(),
            "encode": self.encode.model_dump(),
            "device": self.device,
            "chunks": chunks,
            "max_errors": max_errors,
        }
        (self.scratch / "job.json").write_text(json.dumps(job))
        (self.scratch / _READY).unlink(missing_ok=True)
        stderr_file = self.scratch / "stderr.txt"
        with (
            stderr_file.open("wb") as stderr,
            subprocess.Popen(
                [sys.executable, "-m", "pipeline.flows.encode.isolate", str(self.scratch)],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            ) as process,
        ):
            hung = self._follow(process, on_rows)
        lines = stderr_file.read_text(errors="replace").strip().splitlines() or [""]
        found = f"exit code {process.returncode}: {lines[-1]}"
        if hung:
            found = f"no progress for {self.patience_s:g} s"
        if not (self.scratch / _READY).exists():  # no text is at fault: the child has not begun to encode
            raise ModelError(
                self.encoder.path, "a process that can load the encoder", found[:400], "run manta preflight"
            )
        if process.returncode >= 0:
            return Rejection("encoder_error", found[:300])
        after = f" after {found}" if hung else ""
        return Rejection("kills_worker", f"ended by signal {-process.returncode}{after}")

    def _follow(self, process: "subprocess.Popen[bytes]", on_rows: Callable[[int], None]) -> bool:
        """Wait for the child to end, and report its rows. Returns whether it hung and was killed."""
        stall, meter, checked_at = StallTimer(), CpuMeter(process.pid), time.monotonic()
        last_progress = self._progress()
        on_rows(self._rows_done())
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
                return False
            before, checked_at = checked_at, time.monotonic()
            stall.advance(checked_at - before)
            if (progress := self._progress()) != last_progress:
                last_progress = progress
                is_loaded, touched_ns = progress
                stall.record_rows(touched_ns, more=is_loaded)  # any number that changes with progress
            if meter.busy():
                stall.record_cpu_use()
            if not stall.seconds:
                on_rows(self._rows_done())
            if stall.seconds > self.patience_s:
                process.kill()
                return True

    def _progress(self) -> tuple[bool, int]:
        """Return whether the encoder is loaded, and the time at which the child last reported progress."""
        alive = self.scratch / _ALIVE
        return (self.scratch / _READY).exists(), (alive.stat().st_mtime_ns if alive.exists() else 0)

    def _rows_done(self) -> int:
        return sum(stop - start for start, stop in map(_rows_of, self.scratch.glob("done-*.npz")))

    def _reject(self, row: int, rejection: Rejection, count: int) -> None:
        self.rejected[row] = rejection._replace(detail=rejection.detail[:300])
        if len(self.rejected) > _max_rejected(count):
            raise ModelError(
                self.encoder.path,
                "an encoder that encodes nearly all texts",
                f"{len(self.rejected)} of {count:,} that it cannot ({rejection.detail[:200]})",
                "check the encoder with a few texts: manta preflight",
            )

    def _load_rows(self, start: int, stop: int) -> "EncodedBatch":
        """Read rows [start, stop) from the chunks' files."""
        from pipeline.models.inference.windows import EncodedBatch

        fields = _bad_fields(stop - start, open_folder(self.encoder).dim)  # rejected rows are in no file
        for file in self.scratch.glob("done-*.npz"):
            first, last = _rows_of(file)
            low, high = max(first, start), min(last, stop)
            if low < high:
                with np.load(file) as chunk:
                    for name, values in fields.items():
                        values[low - start : high - start] = chunk[name][low - first : high - first]
        return EncodedBatch(fields.pop("vectors"), fields.pop("bad"), TokenCounts(**fields))


def _chunk_file(scratch: Path, start: int, stop: int) -> Path:
    return scratch / f"done-{start}-{stop}.npz"


def _rows_of(file: Path) -> tuple[int, int]:
    """Return the (start, stop) of the chunk that a file contains."""
    start, stop = file.stem.split("-")[1:]
    return int(start), int(stop)


def _max_rejected(count: int) -> int:
    """Return how many of `count` texts may be rejected before the encoder, and not the texts, is at fault."""
    return max(_MAX_REJECTED, count // 100)


def _load_errors(scratch: Path) -> dict[int, str]:
    """Load the errors that the encoder raised for single texts, by row."""
    return {
        int(file.stem.removeprefix("raised-")): file.read_text(encoding="utf-8")
        for file in sorted(scratch.glob("raised-*.txt"))
    }


def run_child(scratch: Path) -> None:
    """Encode the chunks of the job in `scratch`, into one file each. Runs in the child process."""
    from pipeline.models.inference.encoder import load_encoder

    job = json.loads((scratch / "job.json").read_text())
    texts = json.loads((scratch / "texts.json").read_text(encoding="utf-8"))
    encoder = load_encoder(
        EncoderSettings.model_validate(job["encoder"]),
        EncodeSettings.model_validate(job["encode"]),
        job["device"],
    )
    (scratch / _READY).touch()
    for start, stop in job["chunks"]:
        parts = list(_encode_parts(encoder, texts, start, stop, scratch))
        if len(_load_errors(scratch)) > job["max_errors"]:
            return
        fields = {name: np.concatenate([part[name] for part in parts]) for name in _FIELDS}
        np.savez(scratch / "writing.npz", **fields)  # type: ignore[arg-type]
        os.replace(scratch / "writing.npz", _chunk_file(scratch, start, stop))


def _encode_parts(
    encoder: "Encoder", texts: Sequence[str], start: int, stop: int, scratch: Path
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the fields of texts [start, stop), in one part, or in several if the encoder raises.

    A single text for which the encoder raises is marked as bad, and its error is written to `scratch`.
    """
    try:
        (encoded,) = encoder.encode_stream([texts[start:stop]], lambda rows: (scratch / _ALIVE).touch())
    except MODEL_FAILURES as error:
        if stop - start > 1:
            middle = (start + stop) // 2
            yield from _encode_parts(encoder, texts, start, middle, scratch)
            yield from _encode_parts(encoder, texts, middle, stop, scratch)
            return
        (scratch / f"raised-{start}.txt").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        yield _bad_fields(1, encoder.dim)
        return
    yield {"vectors": encoded.vectors, "bad": encoded.bad, **encoded.counts._asdict()}


def _bad_fields(rows: int, dim: int) -> dict[str, np.ndarray]:
    """Return the fields of `rows` texts without a vector."""
    return {
        "vectors": np.zeros((rows, dim), np.float32),
        "bad": np.ones(rows, bool),
        **TokenCounts.zeros(rows)._asdict(),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with on_keep_alive((folder / _ALIVE).touch):
        run_child(folder)
