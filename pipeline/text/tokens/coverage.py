"""Count the unknown and truncated tokens of a corpus by script, and warn if there are many."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from pipeline.store.records.units import sum_counts
from pipeline.text.tokens.scripts import SCRIPTS, scripts_of
from pipeline.text.tokens.tokens import TokenCounts

WARN_PROPORTION = 0.05  # warn if at least this proportion of the tokens is unknown or lost
# No warning is given about a script with both fewer texts and a smaller proportion of all texts than these.
_MIN_TEXTS, _MIN_PROPORTION = 20, 0.01
_PREFIX = "script_"  # prefix of the names of a unit's counts by script
_REMEDY = "use an encoder that knows the language"


@dataclass(frozen=True)
class Coverage:
    """Token counts of texts, without special tokens and the tokens of template and prompt."""

    rows: int = 0
    """number of texts"""
    tokens: int = 0
    """tokens that were encoded"""
    unknown: int = 0
    """encoded tokens that stand for text outside the vocabulary"""
    cut: int = 0
    """texts that were truncated"""
    lost: int = 0
    """tokens that truncation removed; estimated if a text was not tokenized to its end"""

    def __add__(self, other: "Coverage") -> "Coverage":
        return Coverage(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def unknown_proportion(self) -> float:
        """Unknown tokens as a proportion of the encoded ones."""
        return self.unknown / max(self.tokens, 1)

    @property
    def cut_proportion(self) -> float:
        """Truncated texts as a proportion of all texts."""
        return self.cut / max(self.rows, 1)

    @property
    def lost_proportion(self) -> float:
        """Lost tokens as a proportion of encoded and lost ones."""
        return self.lost / max(self.tokens + self.lost, 1)

    def facts(self) -> dict[str, float]:
        """Return counts and proportions by their names in --json."""
        return vars(self) | {
            "unknown_share": self.unknown_proportion,
            "cut_share": self.cut_proportion,
            "lost_share": self.lost_proportion,
        }

    @property
    def sentence(self) -> str:
        """The three proportions as a phrase for people."""
        return (
            f"{self.unknown_proportion:.1%} of the tokens unknown, "
            f"{self.cut_proportion:.1%} of the texts cut, "
            f"{self.lost_proportion:.1%} of the tokens lost by truncation"
        )


_FIELDS = tuple(field.name for field in fields(Coverage))


class CoverageCounter:
    """Add up the coverage of batches of texts."""

    def __init__(self) -> None:
        self._sums = np.zeros((len(SCRIPTS), len(_FIELDS)), np.int64)  # by script and field of Coverage

    def add(self, texts: pa.Array, counts: TokenCounts) -> None:
        """Count n texts with their n token counts."""
        # In the order of the fields of Coverage.
        columns = (
            np.ones(len(texts), np.int64),
            counts.content,
            counts.unknown,
            counts.truncated,
            counts.lost,
        )
        np.add.at(self._sums, scripts_of(texts), np.stack(columns, axis=1))

    def counts(self) -> dict[str, int]:
        """Sums that are not zero, under the names that `ScriptCoverage.of` reads."""
        named_sums = (
            (f"{_PREFIX}{script}_{name}", int(value))
            for script, sums in zip(SCRIPTS, self._sums, strict=True)
            for name, value in zip(_FIELDS, sums, strict=True)
        )
        return {name: value for name, value in named_sums if value}


@dataclass(frozen=True)
class ScriptCoverage:
    """Coverage by script."""

    scripts: Mapping[str, Coverage]
    uncounted_rows: int = 0
    """rows of units that an earlier version encoded without counting tokens by script"""
    uncounted_tokens: int = 0
    """tokens of these units"""

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> "ScriptCoverage":
        """Read the coverage from the counts of a unit or of a release."""
        by_script = {
            script: Coverage(*(counts.get(f"{_PREFIX}{script}_{name}", 0) for name in _FIELDS))
            for script in sorted(SCRIPTS, key=lambda script: -counts.get(f"{_PREFIX}{script}_rows", 0))
        }
        occurring = {script: coverage for script, coverage in by_script.items() if coverage.rows}
        return cls(occurring, counts.get("uncounted_rows", 0), counts.get("uncounted_tokens", 0))

    @property
    def total(self) -> Coverage:
        """Coverage of all scripts together."""
        return sum(self.scripts.values(), Coverage())

    @property
    def unknown_proportion(self) -> float:
        """Lower bound of the proportion of unknown tokens: uncounted tokens are assumed to be known."""
        total = self.total
        return total.unknown / max(total.tokens + self.uncounted_tokens, 1)

    @property
    def lost_proportion(self) -> float:
        """Lower bound of the proportion of lost tokens: uncounted tokens are assumed to be encoded."""
        total = self.total
        return total.lost / max(total.tokens + total.lost + self.uncounted_tokens, 1)

    def facts(self) -> dict[str, object]:
        """Return counts and proportions, of all texts and by script, by their names in --json."""
        scripts = {script: coverage.facts() for script, coverage in self.scripts.items()}
        return self.total.facts() | {"uncounted_rows": self.uncounted_rows, "scripts": scripts}

    def warnings(self, unknown: bool = True, lost: bool = True) -> Iterator[str]:
        """Yield a warning for each script whose texts have many unknown or many lost tokens.

        Args:
            unknown: whether to warn about unknown tokens.
            lost: whether to warn about lost tokens.
        """
        rows = self.total.rows
        for script, coverage in self.scripts.items():
            if coverage.rows < _MIN_TEXTS and coverage.rows < _MIN_PROPORTION * rows:
                continue
            texts = f"{coverage.rows:,} {script_phrase(script)} ({coverage.rows / rows:.1%} of all)"
            if unknown and coverage.unknown_proportion >= WARN_PROPORTION:
                yield (
                    f"{coverage.unknown_proportion:.1%} of the tokens of {texts} are unknown to the "
                    f"encoder's tokenizer, so their vectors hardly differ; {_REMEDY}"
                )
            if lost and coverage.lost_proportion >= WARN_PROPORTION:
                yield (
                    f"{coverage.lost_proportion:.1%} of the tokens of {texts} were lost by truncation, and "
                    f"{coverage.cut_proportion:.1%} of these texts were truncated; cut them into chunks "
                    "(corpus.chunk.by), raise encoder.max_length if the encoder allows it, or use an encoder "
                    "for longer texts"
                )

    def most_unknown_scripts(self) -> str:
        """The three scripts with the most unknown tokens, as a phrase for people."""
        scripts = sorted(self.scripts, key=lambda script: -self.scripts[script].unknown)[:3]
        return ", ".join(
            f"{coverage.unknown_proportion:.1%} in {coverage.rows:,} {script_phrase(script)}"
            for script in scripts
            if (coverage := self.scripts[script]).unknown
        )

    def most_lost_scripts(self) -> str:
        """The three scripts with the most lost tokens, as a phrase for people."""
        scripts = sorted(self.scripts, key=lambda script: -self.scripts[script].lost)[:3]
        return ", ".join(
            f"{coverage.lost_proportion:.1%} in {coverage.rows:,} {script_phrase(script)}, "
            f"{coverage.cut_proportion:.1%} of them cut"
            for script in scripts
            if (coverage := self.scripts[script]).lost
        )


def token_counts(
    units: Sequence[Mapping[str, int]], new_units: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Token counts of a release: sums by script, and totals of the units encoded for this release.

    Args:
        units: counts of every unit of the release.
        new_units: counts of the units that were encoded for this release.
    """
    sums = {name: count for name, count in sum_counts(units).items() if name.startswith(_PREFIX)}
    uncounted = sum_counts(counts for counts in units if not any(name.startswith(_PREFIX) for name in counts))
    sums |= {f"uncounted_{name}": uncounted[name] for name in ("rows", "tokens") if uncounted.get(name)}
    new = ScriptCoverage.of(sum_counts(new_units)).total
    return sums | {"text_tokens": new.tokens, "unknown_tokens": new.unknown, "lost_tokens": new.lost}


def token_warnings(counts: Mapping[str, int]) -> list[str]:
    """Warnings about unknown and lost tokens, from a release's counts."""
    coverage = ScriptCoverage.of(counts)
    warnings = list(coverage.warnings())
    new, unknown = counts.get("text_tokens", 0), counts.get("unknown_tokens", 0)
    if new < coverage.total.tokens and unknown > WARN_PROPORTION * new:
        warnings.append(
            f"{unknown / new:.1%} of the {new:,} tokens that were encoded for this release "
            f"are unknown to the encoder's tokenizer; {_REMEDY}"
        )
    return warnings


def token_facts(counts: Mapping[str, int]) -> dict[str, object] | None:
    """Return token statistics for --json, from a release's counts; None if no token was counted.

    Returns:
        Proportions over all units, by script, and (as "tonight") over the units encoded for this release.
    """
    coverage = ScriptCoverage.of(counts)
    if not coverage.scripts:
        return None
    tokens, unknown, lost = (counts.get(f"{name}_tokens", 0) for name in ("text", "unknown", "lost"))
    new = Coverage(tokens=tokens, unknown=unknown, lost=lost).facts()
    names = ("tokens", "unknown", "lost", "unknown_share", "lost_share")
    return coverage.facts() | {"tonight": {name: new[name] for name in names}}


def script_phrase(script: str) -> str:
    """Texts of a script as a phrase for people, such as "Greek texts"."""
    return {"symbols": "texts without letters", "other": "texts of rarer scripts"}.get(
        script, f"{script.capitalize()} texts"
    )
