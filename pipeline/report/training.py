"""The page of a training: what was trained on what, how it went, and what came of it; one HTML file, no network, no script."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.models.folder import EncoderFolder
from pipeline.settings.training import TrainSettings
from pipeline.train.figures import Figures


@dataclass(frozen=True)
class Source:
    """Files that were trained on. rows: in them; unlabelled: of these, left out."""

    uri: str
    rows: int
    unlabelled: int = 0
    weight: int = 1


@dataclass(frozen=True)
class Product:
    """The encoder that came of it. head: whether a layer of the objective stays behind the encoder; prompt: what stands before every text."""

    space_id: str
    dim: int
    max_length: int
    pooling: tuple[str, ...]
    normalized: bool
    head: bool = False
    prompt: str = ""

    @classmethod
    def of(cls, folder: EncoderFolder, *, head: bool) -> "Product":
        return cls(folder.space_id, folder.dim, folder.max_length, folder.pooling, folder.normalize, head, folder.prompt)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the page and the model card say; whatever is empty is left out."""

    name: str
    uri: str
    """of the training's folder"""
    settings: TrainSettings
    encoder: str
    """what the training started from, by path or name"""
    start_space: str
    sources: tuple[Source, ...]
    steps: int
    """that were made"""
    planned: int
    steps_per_epoch: int
    lines: tuple[Figures, ...]
    """of metrics.jsonl"""
    product: Product
    best_step: int | None = None
    """whose weights the product has, where dev chose them"""
    ended: str = ""
    """why before the planned steps, in a sentence"""
    device: str = ""
    """what it ran on: "2 workers, CPU, 1 thread" """
    created: str | None = None
    doubts: tuple[str, ...] = ()
    """what the objective says of its settings"""
    settings_text: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)
