"""What a training leaves: an encoder folder in the training's own, and the record that says so."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.flows.training_run import ENCODER, RESULT, ResultRecord, RunFolder
from pipeline.models.folder import EncoderFolder
from pipeline.store.store import Store

if TYPE_CHECKING:
    from pipeline.objectives import Objective, Product
    from pipeline.train.dev import Best

_LAST = ("modules.json", "config.json")         # without them nobody takes a folder for an encoder


def publish(run: RunFolder, objective: "Objective", steps: int, best: "Best") -> ResultRecord:
    """Store the encoder that the objective has trained, then the result of the training.

    steps: that were made; best: on dev, without a figure where nothing was measured.
    """
    product = objective.product()
    with run.store.scratch() as scratch:
        folder = _saved(product, scratch / ENCODER)
        _upload(folder, run.store)
    figures = {} if best.figure is None else {"dev": best.figure}
    result = ResultRecord(name=run.name, digest=run.digest, space_id=folder.space_id, steps=steps, best_step=best.step, figures=figures)
    run.store.create(RESULT, result.to_json())
    return result


def _saved(product: "Product", path: Path) -> EncoderFolder:
    from pipeline.models.saving import save_folder, save_joined

    if product.twin is not None:
        return save_joined((product.encoder, product.twin), path)
    return save_folder(product.encoder, product.encoder.folder, path, head=product.head)


def _upload(folder: EncoderFolder, store: Store) -> None:
    """Each file whole, and last the one that readers look for first: nobody opens half of an encoder."""
    files = [path.relative_to(folder.path) for path in folder.path.rglob("*") if path.is_file()]
    for file in sorted(files, key=_turn):
        store.put(folder.path / file, f"{ENCODER}/{file.as_posix()}")


def _turn(file: Path) -> tuple[int, str]:
    name = file.as_posix()
    return (_LAST.index(name) + 1 if name in _LAST else 0), name
