"""Records of nights that published nothing, for the list and the page of releases.

Every such night writes one small file below candidates/nights/. Only people read them, so prune removes them
like refused candidates.
"""

import re
import socket
import uuid
from datetime import UTC, datetime
from typing import Literal

from pipeline.errors import DataError
from pipeline.log import announce
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.sealed_json import Stored

NIGHTS = "candidates/nights"
"""folder of the records; their names begin with the time"""
SHOWN = 20
"""number of records that the list and the page show"""
_MAX_NIGHTS = 100  # a night that fails every few minutes must not fill the folder
_MAX_REASON = 1_000  # characters; an error may quote a long value
_RECORD = re.compile(rf"{NIGHTS}/\d{{8}}T\d{{6}}\.\d{{6}}Z-[0-9a-f]{{8}}\.json")


Ending = Literal["waiting", "refused", "failed", "stopped"]


class UnpublishedNight(Stored):
    """The end of a night that published nothing."""

    status: Ending
    at: str
    """ISO 8601, UTC, to the second"""
    reason: str
    exit_code: int
    candidate: str | None
    """folder of the candidate below the root; None if the night ended before it had one"""
    host: str

    @property
    def report(self) -> str | None:
        """Path of the candidate's report; None without a candidate."""
        return f"{self.candidate}/report.html" if self.candidate else None


def record_night(
    store: Store, status: Ending, reason: str, *, exit_code: int = 0, candidate: str | None = None
) -> None:
    """Store the record of a night that ends now, and remove the oldest records beyond a hundred."""
    now = datetime.now(UTC)
    night = UnpublishedNight(
        status=status,
        at=now.isoformat(timespec="seconds"),
        reason=" ".join(reason.split())[:_MAX_REASON],
        exit_code=exit_code,
        candidate=candidate,
        host=socket.gethostname(),
    )
    store.write(f"{NIGHTS}/{now:%Y%m%dT%H%M%S.%fZ}-{uuid.uuid4().hex[:8]}.json", night.to_json())
    in_threads(store.delete, _record_paths(store)[:-_MAX_NIGHTS])


def unpublished_nights(store: Store) -> list[UnpublishedNight]:
    """Return the records, the newest first. A damaged record is left out with a log line."""

    def load(path: str) -> UnpublishedNight | None:
        try:
            return UnpublishedNight.load(store, path)
        except DataError as error:
            announce(f"a night is left out of the list: {error}")
            return None

    return [night for night in in_threads(load, reversed(_record_paths(store))) if night is not None]


def _record_paths(store: Store) -> list[str]:
    """List the paths of the records, the oldest first."""
    return [entry.path for entry in store.list(NIGHTS, ".json") if _RECORD.fullmatch(entry.path)]
