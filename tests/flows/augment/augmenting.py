"""Models for the tests of augmentation, without weights; in a module that a worker can import."""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from pipeline.augment import (
    AUGMENTERS,
    ModelAugmenter,
    ModelStage,
    ModelStats,
    StageInput,
    StageOutput,
    keyed_rng,
)
from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.settings.augment import AugmentSettings, ModelSettings

TOO_MANY_WORDS = 16


@dataclass
class _Shuffling:
    """Words in another order. journal: gets a line for every text that is worked on."""

    leg: "ShuffleLeg"
    seed: int
    effort: ModelStats = field(default_factory=ModelStats)

    def __call__(self, sources: Sequence[StageInput]) -> Iterator[tuple[int, StageOutput]]:
        for place, source in reversed(list(enumerate(sources))):
            self._mishap()
            with Path(self.leg.journal).open("a") as journal:
                journal.write(f"{self.leg.mark} {source.text}\n")
            self.stats.texts += 1
            yield place, self._made(source)

    def _made(self, source: StageInput) -> StageOutput:
        words = source.text.split()
        if len(words) >= TOO_MANY_WORDS:
            return StageOutput(reason="too_long_for_model")
        orders = (
            keyed_rng(self.seed, source.key, number).permutation(len(words))
            for number in range(self.leg.outputs)
        )
        return StageOutput(
            tuple(" ".join([self.leg.mark, *(words[place] for place in order)]) for order in orders)
        )

    def _mishap(self) -> None:
        """The process dies, once, where the leg says so."""
        if self.leg.dies and self.stats.texts == 5 and not Path(self.leg.dies).exists():
            Path(self.leg.dies).touch()
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class ShuffleLeg:
    """Puts `mark` before the words of a text, in an order that is drawn."""

    mark: str
    journal: str
    makes: int = 1
    dies: str = ""

    @property
    def title(self) -> str:
        return f"shuffle {self.mark}"

    @property
    def model(self) -> ModelSettings:
        return ModelSettings(path=self.mark)

    def check(self) -> None:
        if not self.mark:
            raise ModelError("mark", "a word", "none", "give one")

    def identity(self) -> JsonValue:
        return [self.mark, self.outputs]

    def start(self, device: Device, settings: AugmentSettings) -> _Shuffling:
        return _Shuffling(self, settings.seed)


@AUGMENTERS.register("test_shuffles")
class Shuffles(ModelAugmenter):
    """One leg for each mark; the last one makes `makes` texts."""

    marks: tuple[str, ...] = ("a", "b")
    journal: str = ""
    makes: int = 1
    dies: str = ""

    def model_stages(self) -> tuple[ModelStage, ...]:
        return tuple(
            ShuffleLeg(mark, self.journal, self.outputs if mark == self.marks[-1] else 1, self.dies)
            for mark in self.marks
        )


def worked_on(journal: Path) -> list[str]:
    """Mark and text of all that was worked on, in the journal's order."""
    return journal.read_text().splitlines() if journal.exists() else []
