"""Encode in a child process, so that a text which kills its process, or makes the encoder raise, is set aside
and all other texts are encoded.

Texts go in chunks. A chunk during which the child died is halved until a single text remains; a text that
killed three processes while alone in them is given up, so a child killed once or twice from outside costs
time and no row. A child that hangs is killed, which counts as a death. A chunk at which the encoder raises is
halved inside the child, which goes on. Vectors do not depend on neighbours, so they are those of an undivided
unit.
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
from pipeline.headway import at_headway
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings
from pipeline.text.tokens.tokens import TokenCounts

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder
    from pipeline.models.inference.windows import Encoded

CHUNK = 512  # texts: nine halvings find the one
_LOOK_S = 0.5
DEATHS = 3  # of a text alone with its process
_MOST_REJECTED = 16  # texts of a unit; more than these and 1 % of it are the encoder's fault, not theirs
_FIELDS = ("vectors", "bad", *TokenCounts._fields)


@dataclass
class Apart:
    """Stands in for an encoder's `encode_stream`. scratch: an empty directory; rejected: (reason, detail) by
    row, filled as batches come out.
    """

    encoder: EncoderSettings
    encode: EncodeSettings
    device: str
    scratch: Path
    patience_s: float = ClusterSettings().patience_s
    """without progress of the child"""
    rejected: dict[int, tuple[str, str]] = field(default_factory=dict)

    def encode_stream(
        self, batches: Iterable[pa.Array], tell: Callable[[int], None] = lambda rows: None
    ) -> "Iterator[Encoded]":
        """One Encoded per batch, in order; rejected texts are bad rows of it. tell: called with the rows that
        are done, whenever the child gets on.
        """
        taken = [batch.to_pylist() for batch in batches]
        texts = [text for batch in taken for text in batch]
        (self.scratch / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        self._encode_all(len(texts), tell)
        starts = np.cumsum([0, *map(len, taken)]).tolist()
        yield from (self._gathered(start, stop) for start, stop in itertools.pairwise(starts))

    def _encode_all(self, count: int, tell: Callable[[int], None]) -> None:
        pending = deque((start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))
        deaths: dict[int, int] = {}
        while pending:
            ended = self._run(list(pending), _most_rejected(count), tell)
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
                reason = "kills_worker" if ended.startswith("ended by signal") else "encoder_error"
                self._reject(start, reason, f"alone in a process, {DEATHS} times: {ended}", count)

    def _run(self, chunks: Sequence[tuple[int, int]], most: int, tell: Callable[[int], None]) -> str:
        """Encode the chunks in a child, in order, until it ends; how it ended.

        It stops by itself when more than `most` texts made the encoder raise.
        """
        job = {
            "encoder": self.encoder.model_dump(),
            "encode": self.encode.model_dump(),
            "device": self.device,
            "chunks": chunks,
            "most": most,
        }
        (self.scratch / "job.json").write_text(json.dumps(job))
        _ready(self.scratch).unlink(missing_ok=True)
        command = [sys.executable, "-m", "pipeline.flows.encode.isolate", str(self.scratch)]
        said = self.scratch / "said.txt"
        with (
            said.open("wb") as errors,
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as process,
        ):
            hung = self._follow(process, tell)
        last = said.read_text(errors="replace").strip().splitlines()[-1:] or [""]
        found = (
            f"no progress for {self.patience_s:g} s" if hung else f"exit code {process.returncode}: {last[0]}"
        )
        if not _ready(self.scratch).exists():  # it never came to a text, so no text is at fault
            raise ModelError(
                self.encoder.path, "a process that can load the encoder", found[:400], "run manta preflight"
            )
        signalled = f"ended by signal {-process.returncode}" + (f" after {found}" if hung else "")
        return signalled if process.returncode < 0 else found[:300]

    def _follow(self, process: "subprocess.Popen[bytes]", tell: Callable[[int], None]) -> bool:
        """Wait for the child to end, and tell of its rows; kill one that hangs. Whether it did."""
        standstill, meter, looked = Standstill(), Meter(process.pid), time.monotonic()
        known = (_ready(self.scratch).exists(), _told(self.scratch))
        tell(self._rows_done())
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
                return False
            before, looked = looked, time.monotonic()
            standstill.look(looked - before)
            if (found := (_ready(self.scratch).exists(), _told(self.scratch))) != known:
                known = found
                standstill.report(known[1], counted=known[0])
            if meter.busy():
                standstill.compute()
            if not standstill.seconds:
                tell(self._rows_done())
            if standstill.seconds > self.patience_s:
                process.kill()
                return True

    def _rows_done(self) -> int:
        return sum(stop - start for start, stop in map(_rows_of, self.scratch.glob("done-*.npz")))

    def _reject(self, row: int, reason: str, detail: str, count: int) -> None:
        self.rejected[row] = (reason, detail[:300])
        if len(self.rejected) > _most_rejected(count):
            found, remedy = (
                f"{len(self.rejected)} of {count:,} that it cannot ({detail[:200]})",
                "check the encoder with a few texts: manta preflight",
            )
            raise ModelError(self.encoder.path, "an encoder that encodes nearly all texts", found, remedy)

    def _gathered(self, start: int, stop: int) -> "Encoded":
        """Rows [start, stop) out of the chunks' files."""
        from pipeline.models.inference.windows import Encoded

        fields = _rejected(stop - start, self._dim())
        for file in self.scratch.glob("done-*.npz"):
            first, last = _rows_of(file)
            low, high = max(first, start), min(last, stop)
            if low < high:
                with np.load(file) as chunk:
                    for name, values in fields.items():
                        values[low - start : high - start] = chunk[name][low - first : high - first]
        return Encoded(fields.pop("vectors"), fields.pop("bad"), TokenCounts(**fields))

    def _dim(self) -> int:
        from pipeline.models.folder.folder import open_folder

        return open_folder(self.encoder).dim


def _result(scratch: Path, start: int, stop: int) -> Path:
    return scratch / f"done-{start}-{stop}.npz"


def _rows_of(result: Path) -> tuple[int, int]:
    start, stop = result.stem.split("-")[1:]
    return int(start), int(stop)


def _ready(scratch: Path) -> Path:
    return scratch / "ready"


def _told(scratch: Path) -> int:
    """Another number after each buffer that the child has computed, and each sign of headway."""
    mark = scratch / "told"
    return mark.stat().st_mtime_ns if mark.exists() else 0


def _most_rejected(count: int) -> int:
    """Texts of a unit of `count` that may be set aside; more are the encoder's fault."""
    return max(_MOST_REJECTED, count // 100)


def _raised(scratch: Path) -> dict[int, str]:
    """The error of each text at which the encoder raised, by row."""
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
    _ready(scratch).touch()
    for start, stop in job["chunks"]:
        parts = list(_encoded(encoder, texts, start, stop, scratch))
        if len(_raised(scratch)) > job["most"]:
            return
        _store(
            {name: np.concatenate([part[name] for part in parts]) for name in _FIELDS},
            _result(scratch, start, stop),
        )


def _encoded(
    encoder: "Encoder", texts: Sequence[str], start: int, stop: int, scratch: Path
) -> Iterator[dict[str, np.ndarray]]:
    """The fields of the texts [start, stop), in parts; a text at which the encoder raises leaves its error in
    `scratch` and counts as bad.
    """
    try:
        (encoded,) = encoder.encode_stream([texts[start:stop]], lambda rows: (scratch / "told").touch())
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
    """The fields of so many texts without a vector."""
    return {
        "vectors": np.zeros((rows, dim), np.float32),
        "bad": np.ones(rows, bool),
        **TokenCounts.none(rows)._asdict(),
    }


def _store(fields: dict[str, np.ndarray], to: Path) -> None:
    written = to.with_name("writing.npz")
    np.savez(written, **fields)  # type: ignore[arg-type]
    os.replace(written, to)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    with at_headway((place / "told").touch):
        child(place)
