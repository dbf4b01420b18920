"""Rules of a model's generation_config: its special tokens, and the tokens that are forbidden at a step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import ModelError

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]  # (tokens so far (n, t), scores (n, V)) -> scores


@dataclass(frozen=True)
class Rules:
    """Special tokens of a translation and the tokens that are forbidden in it."""

    start: int
    """decoder start token, which precedes the translation"""
    ends: tuple[int, ...]
    pad: int
    first: int | None = None
    """forced first token of the translation"""
    forced_end: int | None = None
    """forced last token of a translation that reaches its limit; None: it is truncated there"""
    banned: tuple[int, ...] = ()
    processors: tuple[LogitsProcessor, ...] = field(default=(), compare=False)
    """logits processors of transformers, for the rarer rules that depend on the tokens so far"""

    def apply(
        self, scores: Tensor, step: int, min_tokens: Tensor | None, written: Callable[[], Tensor]
    ) -> Tensor:
        """Apply the rules for `step`: scores of forbidden tokens become -inf. May change `scores` in place.

        Args:
            scores: (n, V) float32.
            step: number of tokens so far.
            min_tokens: (n,) minimum length of each row; None if all rows have reached it.
            written: returns the (n, step + 1) tokens so far; called only if a rule needs them.

        Returns:
            (n, V) scores.
        """
        if self.processors:
            tokens = written()
            for processor in self.processors:
                scores = processor(tokens, scores)
        # one by one, because a list of tokens would be copied to the device at every step
        for token in self.banned:
            scores[:, token] = -torch.inf
        if min_tokens is not None:
            for end in self.ends:
                scores[:, end].masked_fill_(min_tokens > step, -torch.inf)
        return scores


def rules_of(model: Any, first: int | None, start: int | None, path: str) -> Rules:
    """Read the rules of a transformers model.

    Args:
        model: transformers model with a generation_config.
        first: token of the target language, if translations begin with it.
        start: token of the target language, if it is the decoder start token.
        path: the model's path, for errors.

    Raises:
        ModelError: the model does not define the start or the end of a translation.
    """
    config = model.generation_config
    ends = _token_ids(config.eos_token_id)
    candidates = (start, config.decoder_start_token_id, config.bos_token_id)
    begin = next((token for token in candidates if token is not None), None)
    if begin is None or not ends:
        raise ModelError(
            path,
            "the start and end tokens of a translation in generation_config.json or config.json",
            f"decoder_start_token_id {begin}, eos_token_id {config.eos_token_id}",
            "restore the file",
        )
    pad, forced_end = _token_ids(config.pad_token_id), _token_ids(config.forced_eos_token_id)
    single = {words[0] for words in config.bad_words_ids or () if len(words) == 1 and words[0] not in ends}
    return Rules(
        start=_token_ids(begin)[0],
        ends=ends,
        pad=pad[0] if pad else ends[0],
        first=first if first is not None else config.forced_bos_token_id,
        forced_end=forced_end[0] if forced_end else None,
        banned=tuple(sorted(single | set(config.suppress_tokens or ()))),
        processors=_processors(config, ends),
    )


def _processors(config: Any, ends: tuple[int, ...]) -> tuple[LogitsProcessor, ...]:
    from transformers import (
        NoBadWordsLogitsProcessor,
        NoRepeatNGramLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
    )

    found: list[LogitsProcessor] = []
    if config.repetition_penalty not in (None, 1.0):
        found.append(RepetitionPenaltyLogitsProcessor(penalty=config.repetition_penalty))
    if config.no_repeat_ngram_size:
        found.append(NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
    if longer := [words for words in config.bad_words_ids or () if len(words) > 1]:
        found.append(NoBadWordsLogitsProcessor(longer, eos_token_id=list(ends)))
    return tuple(found)


def _token_ids(value: Any) -> tuple[int, ...]:
    """Return the token ids of a configuration value, which is None, an id or a list of ids."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (int(value),)
