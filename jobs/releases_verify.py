"""Output of `manta releases verify`."""

from typing import TYPE_CHECKING

from jobs.command import Answer
from jobs.layout import table
from pipeline.errors import DataError
from pipeline.log import Stages, size

if TYPE_CHECKING:
    from pipeline.store.release import Releases
    from pipeline.store.verify import Fault

_SHOWN_FAULTS = 20


def whole(opened: "Releases", number: int | None, sizes: bool) -> Answer:
    """Every file of a release against its manifest, by size or by content."""
    from pipeline.store.verify import bytes_to_read, content_faults, files_of, size_faults

    manifest, store = opened.chosen(number), opened.store
    if sizes:
        faults = size_faults(store, manifest)
    else:
        with Stages()("verify", bytes_to_read(store, manifest), "bytes") as bar:
            faults = content_faults(store, manifest, bar.add)
        if not faults:
            _open_fully(opened, manifest.release)
    needed = () if faults else files_of(store, manifest)
    count, total = len(needed), sum(file.bytes for file in needed)
    how = "size" if sizes else "sha256"
    facts = {
        "release": manifest.release, "whole": not faults, "compared": how, "files": count, "bytes": total,
        "faults": [fault._asdict() for fault in faults],
    }  # fmt: skip
    if not faults:
        text = f"release {manifest.release} is whole: {count:,} files, {size(total)}, compared by {how}"
        return Answer(facts, text)
    return Answer(facts, _told(manifest.release, faults), DataError.exit_code)


def _open_fully(opened: "Releases", number: int) -> None:
    """DataError where a file whose sha256 is right cannot be read to its end."""
    from pipeline.index.search import open_chosen

    open_chosen(opened, number, verify=False).validate()


def _told(number: int, faults: "list[Fault]") -> str:
    lines = [(fault.path, fault.expected, fault.found or "gone") for fault in faults[:_SHOWN_FAULTS]]
    more = f"\n... and {len(faults) - _SHOWN_FAULTS:,} more" if len(faults) > _SHOWN_FAULTS else ""
    remedy = (
        "Restore them, or delete those that are changed and run `manta nightly`: it makes missing "
        "files again. "
        "Or roll back to a complete release."
    )
    head = f"release {number} is damaged: {len(faults):,} of its files"
    return f"{head}\n\n{table(lines, ('file', 'expected', 'found'))}{more}\n\n{remedy}"
