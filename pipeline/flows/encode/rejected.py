"""Warnings about rows for which the encoder failed or gave an unusable vector."""

from collections.abc import Mapping

# Reasons for which the encode stage quarantines a row.
_REASONS = ("unusable_vector", "encoder_error", "kills_worker")
_WARN_PROPORTION = 0.02  # proportion of the rows above which there is a warning


def rejected_warnings(counts: Mapping[str, int], rows: int) -> list[str]:
    """Return warnings about rows without a usable vector.

    Args:
        counts: counts of a release or of units.
        rows: number of all rows, including quarantined rows.
    """
    found = {reason: counts.get(f"quarantined_{reason}", 0) for reason in _REASONS}
    count = sum(found.values())
    if count <= _WARN_PROPORTION * rows:
        return []
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in found.items() if number)
    return [
        f"{count:,} of {rows:,} rows ({count / rows:.1%}) have no vector and will not be found, because of "
        f"the encoder ({reasons}): look at their texts, check encode.dtype and the model's files"
    ]
