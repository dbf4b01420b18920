"""Models without weights for the tests of augmentation, in a module that a worker can import."""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from pipeline.augment import (
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
class _LoadedShuffle:
    """Shuffle the words of a text; the stage's journal gets a line for every text."""

    stage: "ShuffleStage"
    seed: int
    stats: ModelStats = field(default_factory=ModelStats)

    def __call__(self, sources: Sequence[StageInput]) -> Iterator[tuple[int, StageOutput]]:
        for index, source in reversed(list(enumerate(sources))):
            self._maybe_die()
            with Path(self.stage.journal).open("a") as journal:
                journal.write(f"{self.stage.mark} {source.text}\n")
            self.stats.texts += 1
            yield index, self._shuffle(source)

    def _shuffle(self, source: StageInput) -> StageOutput:
        words = source.text.split()
        if len(words) >= TOO_MANY_WORDS:
            return StageOutput(reason="too_long_for_model")
        orders = (
            keyed_rng(self.seed, source.key, number).permutation(len(words))
            for number in range(self.stage.outputs)
        )
        return StageOutput(
            tuple(" ".join([self.stage.mark, *(words[index] for index in order)]) for order in orders)
        )

    def _maybe_die(self) -> None:
        """Kill the process once, if the stage names a file `dies` that does not exist yet."""
        if self.stage.dies and self.stats.texts == 5 and not Path(self.stage.dies).exists():
            Path(self.stage.dies).touch()
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class ShuffleStage:
    """Puts `mark` before the words of a text, which are shuffled."""

    mark: str
    journal: str
    outputs: int = 1
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

    def start(self, device: Device, settings: AugmentSettings) -> _LoadedShuffle:
        return _LoadedShuffle(self, settings.seed)


class Shuffles(ModelAugmenter):
    """One stage for each mark; the last one makes `outputs` texts."""

    marks: tuple[str, ...] = ("a", "b")
    """one for each stage"""
    journal: str = ""
    """file that gets a line for every text that is worked on"""
    outputs: int = 1
    """texts of the last stage"""
    dies: str = ""
    """file that the process writes before it kills itself, once; empty: it does not kill itself"""

    def model_stages(self) -> tuple[ModelStage, ...]:
        return tuple(
            ShuffleStage(mark, self.journal, self.outputs if mark == self.marks[-1] else 1, self.dies)
            for mark in self.marks
        )


def worked_on(journal: Path) -> list[str]:
    """Return mark and text of each processed text, in the order of the journal."""
    return journal.read_text().splitlines() if journal.exists() else []
