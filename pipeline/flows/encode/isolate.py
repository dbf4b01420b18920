"""Encode in a child process, so that only the texts that kill it, or make the encoder raise, are quarantined.

Texts go in chunks. If the child dies, the chunk is halved until a single text remains. A text is rejected
after the child died three times with it alone, so a child killed once or twice from outside costs time, but
no row. A child that hangs is killed. A chunk at which the encoder raises is halved inside the child, which
goes on. Vectors do not depend on neighbours, so they equal those of a unit encoded whole.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.errors import MODEL_FAILURES, ModelError
from pipeline.flows.workers.standstill import Meter, Standstill
from pipeline.keep_alive import on_keep_alive
from pipeline.models.folder.folder import open_folder
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings
from pipeline.text.tokens.tokens import TokenCounts

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder
    from pipeline.models.inference.windows import Encoded

CHUNK = 512  # texts; nine halvings isolate one
DEATHS = 3  # of a child with one text alone
_LOOK_S = 0.5
_MOST_REJECTED = 16  # texts of a unit; if more than these and 1 % of it are rejected, the encoder is at fault
_READY = "ready"  # file that the child makes when its encoder is loaded
_ALIVE = "alive"  # file that the child touches after each buffer, and for each keep-alive signal
_FIELDS = ("vectors", "bad", *TokenCounts._fields)


@dataclass
class IsolatedEncoder:
    """Encoder that runs in a child process.

    Attributes:
        encoder: settings.
        encode: settings.
        device: of the encoder.
        scratch: an empty directory.
        patience_s: seconds without progress of the child before it is killed.
        rejected: (reason, detail) by row, filled as batches are yielded.
    """

    encoder: EncoderSettings
    encode: EncodeSettings
    device: str
    scratch: Path
    patience_s: float = ClusterSettings().patience_s
    rejected: dict[int, tuple[str, str]] = field(default_factory=dict)

    def encode_stream(
        self, batches: Iterable[pa.Array], on_rows: Callable[[int], None] = lambda rows: None
    ) -> "Iterator[Encoded]":
        """Yield one Encoded per batch, in order; rejected texts are bad rows of it.

        Args:
            batches: of strings.
            on_rows: called with the number of rows done, whenever the child makes progress.
        """
        taken = [batch.to_pylist() for batch in batches]
        texts = [text for batch in taken for text in batch]
        (self.scratch / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        self._encode_all(len(texts), on_rows)
        starts = np.cumsum([0, *map(len, taken)]).tolist()
        yield from (self._gathered(start, stop) for start, stop in itertools.pairwise(starts))

    def _encode_all(self, count: int, on_rows: Callable[[int], None]) -> None:
        pending = deque((start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))
        deaths: dict[int, int] = {}
        while pending:
            ended = self._run(list(pending), _most_rejected(count), on_rows)
            for row, raised in _raised(self.scratch).items():
                self._reject(row, "encoder_error", raised, count)
            while pending and _result(self.scratch, *pending[0]).exists():
                pending.popleft()
            if not pending:
                return
            start, stop = pending.popleft()
            if stop - start > 1:
                middle = (start + stop) // 2
                pending.extendleft([(middle, stop), (start, middle)])
                continue
            deaths[start] = deaths.get(start, 0) + 1
            if deaths[start] < DEATHS:
                pending.appendleft((start, stop))
            else:
                self._reject(
                    start,
                    "kills_worker" if ended.startswith("ended by signal") else "encoder_error",
                    f"alone in a process, {DEATHS} times: {ended}",
                    count,
                )

    def _run(self, chunks: Sequence[tuple[int, int]], most: int, on_rows: Callable[[int], None]) -> str:
        """Encode the chunks in a child, in order, until it ends. Returns a description of its end.

        It ends by itself when more than `most` texts made the encoder raise.
        """
        job = {
            "encoder": self.encoder.model_dump(),
            "encode": self.encode.model_dump(),
            "device": self.device,
            "chunks": chunks,
            "most": most,
        }
        (self.scratch / "job.json").write_text(json.dumps(job))
        Path(self.scratch, _READY).unlink(missing_ok=True)
        said = self.scratch / "said.txt"
        with (
            said.open("wb") as errors,
            subprocess.Popen(
                [sys.executable, "-m", "pipeline.flows.encode.isolate", str(self.scratch)],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            ) as process,
        ):
            hung = self._follow(process, on_rows)
        last = said.read_text(errors="replace").strip().splitlines()[-1:] or [""]
        found = (
            f"no progress for {self.patience_s:g} s" if hung else f"exit code {process.returncode}: {last[0]}"
        )
        if not Path(self.scratch, _READY).exists():  # it began no text, so no text is at fault
            raise ModelError(
                self.encoder.path, "a process that can load the encoder", found[:400], "run manta preflight"
            )
        signalled = f"ended by signal {-process.returncode}" + (f" after {found}" if hung else "")
        return signalled if process.returncode < 0 else found[:300]

    def _follow(self, process: "subprocess.Popen[bytes]", on_rows: Callable[[int], None]) -> bool:
        """Wait for the child to end, and report its rows. Returns True if it hung and was killed."""
        standstill, meter, looked = Standstill(), Meter(process.pid), time.monotonic()
        known = self._progress()
        on_rows(self._rows_done())
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
                return False
            before, looked = looked, time.monotonic()
            standstill.look(looked - before)
            if (found := self._progress()) != known:
                known = found
                standstill.report(found[1], counted=found[0])
            if meter.busy():
                standstill.compute()
            if not standstill.seconds:
                on_rows(self._rows_done())
            if standstill.seconds > self.patience_s:
                process.kill()
                return True

    def _progress(self) -> tuple[bool, int]:
        """Return whether the encoder is loaded, and a number that changes when the child makes progress."""
        mark = self.scratch / _ALIVE
        return Path(self.scratch, _READY).exists(), mark.stat().st_mtime_ns if mark.exists() else 0

    def _rows_done(self) -> int:
        return sum(stop - start for start, stop in map(_rows_of, self.scratch.glob("done-*.npz")))

    def _reject(self, row: int, reason: str, detail: str, count: int) -> None:
        self.rejected[row] = (reason, detail[:300])
        if len(self.rejected) > _most_rejected(count):
            raise ModelError(
                self.encoder.path,
                "an encoder that encodes nearly all texts",
                f"{len(self.rejected)} of {count:,} that it cannot ({detail[:200]})",
                "check the encoder with a few texts: manta preflight",
            )

    def _gathered(self, start: int, stop: int) -> "Encoded":
        """Read rows [start, stop) from the chunks' files."""
        from pipeline.models.inference.windows import Encoded

        fields = _rejected(stop - start, open_folder(self.encoder).dim)
        for file in self.scratch.glob("done-*.npz"):
            first, last = _rows_of(file)
            low, high = max(first, start), min(last, stop)
            if low < high:
                with np.load(file) as chunk:
                    for name, values in fields.items():
                        values[low - start : high - start] = chunk[name][low - first : high - first]
        return Encoded(fields.pop("vectors"), fields.pop("bad"), TokenCounts(**fields))


def _result(scratch: Path, start: int, stop: int) -> Path:
    return scratch / f"done-{start}-{stop}.npz"


def _rows_of(result: Path) -> tuple[int, int]:
    start, stop = result.stem.split("-")[1:]
    return int(start), int(stop)


def _most_rejected(count: int) -> int:
    """Return how many texts of a unit of `count` may be rejected before the encoder is at fault."""
    return max(_MOST_REJECTED, count // 100)


def _raised(scratch: Path) -> dict[int, str]:
    """Return the error of each text at which the encoder raised, by row."""
    return {
        int(file.stem.removeprefix("raised-")): file.read_text(encoding="utf-8")
        for file in sorted(scratch.glob("raised-*.txt"))
    }


def child(scratch: Path) -> None:
    """Encode the chunks of the job in `scratch`, one file each."""
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
        parts = list(_encoded(encoder, texts, start, stop, scratch))
        if len(_raised(scratch)) > job["most"]:
            return
        fields = {name: np.concatenate([part[name] for part in parts]) for name in _FIELDS}
        np.savez(scratch / "writing.npz", **fields)  # type: ignore[arg-type]
        os.replace(scratch / "writing.npz", _result(scratch, start, stop))


def _encoded(
    encoder: "Encoder", texts: Sequence[str], start: int, stop: int, scratch: Path
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the fields of texts [start, stop), in parts.

    A text at which the encoder raises counts as bad; its error is written to `scratch`.
    """
    try:
        (encoded,) = encoder.encode_stream([texts[start:stop]], lambda rows: (scratch / _ALIVE).touch())
    except MODEL_FAILURES as error:
        if stop - start > 1:
            middle = (start + stop) // 2
            yield from _encoded(encoder, texts, start, middle, scratch)
            yield from _encoded(encoder, texts, middle, stop, scratch)
            return
        (scratch / f"raised-{start}.txt").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        yield _rejected(1, encoder.dim)
        return
    yield {"vectors": encoded.vectors, "bad": encoded.bad, **encoded.counts._asdict()}


def _rejected(rows: int, dim: int) -> dict[str, np.ndarray]:
    """Return the fields of `rows` texts without a vector."""
    return {
        "vectors": np.zeros((rows, dim), np.float32),
        "bad": np.ones(rows, bool),
        **TokenCounts.none(rows)._asdict(),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with on_keep_alive((folder / _ALIVE).touch):
        child(folder)
