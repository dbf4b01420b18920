"""How much of its texts an encoder sees: tokens that its vocabulary lacks and tokens beyond its limit, script
by script.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from pipeline.store.units import total
from pipeline.text.tokens.scripts import SCRIPTS, scripts_of
from pipeline.text.tokens.tokens import TokenCounts

MUCH = 0.05  # proportion of unknown or lost tokens that is worth a warning
_FEW = 20  # texts of one script below which they are worth no warning, unless they are
_SMALL = 0.01  # this proportion of all
_PREFIX = "script_"  # of a unit's counts
_REMEDY = "use an encoder that knows the language"


@dataclass(frozen=True)
class Coverage:
    """Token counts of some texts, without special tokens, template and prompt."""

    rows: int = 0
    tokens: int = 0
    """that were encoded"""
    unknown: int = 0
    """of them that stand for what the vocabulary lacks"""
    cut: int = 0
    """texts that were too long"""
    lost: int = 0
    """tokens of those that did not fit; estimated where a text was not read to its end"""

    def __add__(self, other: "Coverage") -> "Coverage":
        return Coverage(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def unknown_share(self) -> float:
        return self.unknown / max(self.tokens, 1)

    @property
    def cut_share(self) -> float:
        return self.cut / max(self.rows, 1)

    @property
    def lost_share(self) -> float:
        return self.lost / max(self.tokens + self.lost, 1)

    def facts(self) -> dict[str, float]:
        """For --json."""
        return vars(self) | {
            "unknown_share": self.unknown_share,
            "cut_share": self.cut_share,
            "lost_share": self.lost_share,
        }

    @property
    def sentence(self) -> str:
        """The three proportions in words."""
        return f"{self.unknown_share:.1%} of the tokens unknown, {self.cut_share:.1%} of the texts cut, {self.lost_share:.1%} of the tokens lost by it"


_FIELDS = tuple(each.name for each in fields(Coverage))


class Tally:
    """Adds up the coverage of batches of texts."""

    def __init__(self) -> None:
        self._sums = np.zeros((len(SCRIPTS), len(_FIELDS)), np.int64)

    def add(self, texts: pa.Array, counts: TokenCounts) -> None:
        """Count n texts and their n token counts."""
        scripts = scripts_of(texts)
        each = (np.ones(len(texts), np.int64), counts.content, counts.unknown, counts.truncated, counts.lost)
        for column, values in enumerate(each):
            self._sums[:, column] += np.bincount(scripts, weights=values, minlength=len(SCRIPTS)).astype(
                np.int64
            )

    def counts(self) -> dict[str, int]:
        """The sums that are not zero, as `Covered.of` reads them."""
        named = (
            (f"{_PREFIX}{script}_{name}", int(value))
            for script, sums in zip(SCRIPTS, self._sums, strict=True)
            for name, value in zip(_FIELDS, sums, strict=True)
        )
        return {name: value for name, value in named if value}


@dataclass(frozen=True)
class Covered:
    """Coverage by script. uncounted_rows, uncounted_tokens: those of units that a version encoded which did
    not count.
    """

    scripts: Mapping[str, Coverage]
    uncounted_rows: int = 0
    uncounted_tokens: int = 0

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> "Covered":
        """From the counts of units or of a release."""
        found = {
            script: Coverage(*(counts.get(f"{_PREFIX}{script}_{name}", 0) for name in _FIELDS))
            for script in SCRIPTS
        }
        seen = {
            script: each for script, each in sorted(found.items(), key=lambda one: -one[1].rows) if each.rows
        }
        return cls(seen, counts.get("uncounted_rows", 0), counts.get("uncounted_tokens", 0))

    @property
    def total(self) -> Coverage:
        return sum(self.scripts.values(), Coverage())

    @property
    def unknown_share(self) -> float:
        """Proportion of unknown tokens among all, at least: of uncounted ones none is taken to be unknown."""
        total = self.total
        return total.unknown / max(total.tokens + self.uncounted_tokens, 1)

    def facts(self) -> dict[str, object]:
        """For --json."""
        scripts = {script: each.facts() for script, each in self.scripts.items()}
        return self.total.facts() | {"uncounted_rows": self.uncounted_rows, "scripts": scripts}

    def _warnings(self) -> Iterator[str]:
        rows = self.total.rows
        for script, each in self.scripts.items():
            if each.rows < _FEW and each.rows < _SMALL * rows:
                continue
            texts = f"{each.rows:,} {named(script)} ({each.rows / rows:.1%} of all)"
            if each.unknown_share >= MUCH:
                yield f"{each.unknown_share:.1%} of the tokens of {texts} are unknown to the encoder's tokenizer: their vectors hardly differ; {_REMEDY}"
            if each.lost_share >= MUCH:
                remedy = "split them, or use an encoder for longer texts"
                yield f"{each.lost_share:.1%} of the tokens of {texts} are beyond the limit and in no vector: {each.cut_share:.1%} of the texts were cut; {remedy}"

    def most_unknown(self) -> str:
        """The scripts with most unknown tokens, in words."""
        worst = sorted(self.scripts.items(), key=lambda one: -one[1].unknown)[:3]
        return ", ".join(
            f"{each.unknown_share:.1%} in {each.rows:,} {named(script)}"
            for script, each in worst
            if each.unknown
        )


def token_counts(units: Sequence[Mapping[str, int]], fresh: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Counts of a release from those of its units: tokens by script, and those of its `fresh` units, which
    were encoded for it, in sum.
    """
    sums = {name: count for name, count in total(units).items() if name.startswith(_PREFIX)}
    uncounted = total(counts for counts in units if not any(name.startswith(_PREFIX) for name in counts))
    sums |= {f"uncounted_{name}": uncounted[name] for name in ("rows", "tokens") if uncounted.get(name)}
    new = Covered.of(total(fresh)).total
    return sums | {"text_tokens": new.tokens, "unknown_tokens": new.unknown, "lost_tokens": new.lost}


def token_warnings(counts: Mapping[str, int]) -> list[str]:
    """What a person should know before the vectors are used, in sentences, by a release's counts."""
    covered = Covered.of(counts)
    found = list(covered._warnings())
    new, unknown = counts.get("text_tokens", 0), counts.get("unknown_tokens", 0)
    if new < covered.total.tokens and unknown > MUCH * new:
        found.append(
            f"{unknown / new:.1%} of the {new:,} tokens that were encoded for this release are unknown to the encoder's tokenizer; {_REMEDY}"
        )
    return found


def token_facts(counts: Mapping[str, int]) -> dict[str, object] | None:
    """For --json, by a release's counts: proportions over all its units, by script, and of those encoded for
    it; None where no token was counted.
    """
    covered = Covered.of(counts)
    if not covered.scripts:
        return None
    new = {name: counts.get(f"{name}_tokens", 0) for name in ("text", "unknown", "lost")}
    shares = {
        "unknown_share": new["unknown"] / max(new["text"], 1),
        "lost_share": new["lost"] / max(new["text"] + new["lost"], 1),
    }
    return covered.facts() | {
        "tonight": {"tokens": new["text"], "unknown": new["unknown"], "lost": new["lost"], **shares}
    }


def named(script: str) -> str:
    """Texts of a script, in words."""
    return {"symbols": "texts without letters", "other": "texts of rarer scripts"}.get(
        script, f"{script.capitalize()} texts"
    )
