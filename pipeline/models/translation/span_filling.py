"""Generate templates with T5, the work of one model.

T5 fills two spans: one before a word, and one between the word and its definition.

Source: Jiang et al. 2022 (PromptBERT, section 3.3), with the beam search of Gao et al. 2021 (LM-BFF, section
5.2): one template is sought for all definitions, not one for each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.models.translation.definitions import Definition
from pipeline.models.translation.seq2seq import load_model, open_tokenizer, open_translator
from pipeline.settings.augment import TranslatorSettings

# sentinels that begin the two spans and end the second
_SENTINELS = ("<extra_id_0>", "<extra_id_1>", "<extra_id_2>")
_BATCH = 256  # sequences in a forward pass


@dataclass(frozen=True)
class Beam:
    """Tokens of the two spans so far, with the sentinel between them once it is reached, and their score."""

    tokens: tuple[int, ...] = ()
    """the tokens after the first sentinel"""
    score: float = 0.0
    """log p of each token, averaged over the definitions and summed over the tokens"""


class SpanFilling:
    """T5 that fills the spans of `<extra_id_0> word <extra_id_1> definition`.

    Args:
        path: folder, URI or hub id of a T5 that was trained to fill spans and never fine-tuned.
        definitions: at least one.
        device: device of the forward passes.

    Raises:
        ModelError: the model cannot be loaded, or has no sentinel tokens.
    """

    def __init__(self, path: str, definitions: Sequence[Definition], device: Device) -> None:
        settings = TranslatorSettings(path=path)
        folder = open_translator(settings)
        self._tokenizer: Any = open_tokenizer(folder, settings).tokenizer
        vocabulary = self._tokenizer.get_vocab()
        if absent := [token for token in _SENTINELS if token not in vocabulary]:
            raise ModelError(
                path,
                f"a model that fills spans, with the tokens {', '.join(_SENTINELS)}",
                f"a tokenizer without {absent[0]}",
                "give a T5 that was not fine-tuned, such as t5-large or google/t5-v1_1-large",
            )
        self._first, self._second, self._end = (vocabulary[token] for token in _SENTINELS)
        self._device = device.torch()
        self._model = load_model(folder, torch.float32).to(self._device)
        self._usable = self._usable_tokens(vocabulary)
        first, second, _ = _SENTINELS
        inputs = self._tokenizer(
            [f"{first} {each.word} {second} {each.definition}" for each in definitions],
            padding=True,
            truncation=True,
            max_length=folder.longest,
            return_tensors="pt",
        ).to(self._device)
        self._mask = inputs["attention_mask"]
        with torch.inference_mode():
            self._states = self._model.get_encoder()(
                input_ids=inputs["input_ids"], attention_mask=self._mask
            ).last_hidden_state

    def templates(self, count: int, beams: int, max_tokens: int) -> list[str]:
        """Search for the most probable pairs of spans, and return their distinct templates, best first.

        Args:
            count: greatest number of templates.
            beams: number of unfinished pairs that are continued after each token.
            max_tokens: greatest number of tokens of both spans together.
        """
        templates = dict.fromkeys(
            template for beam in self.search(count, beams, max_tokens) if (template := self._template(beam))
        )
        return list(templates)[:count]

    @torch.inference_mode()
    def search(self, count: int, beams: int, max_tokens: int) -> list[Beam]:
        """Return the pairs of spans that are most probable on average over the definitions, best first."""
        growing, finished = [Beam()], list[Beam]()
        for length in range(max_tokens + 2):  # and two sentinels
            candidates = list[Beam]()
            for beam, log_probabilities in self._continuations(growing):
                delimiter = self._end if self._second in beam.tokens else self._second
                score = beam.score + float(log_probabilities[delimiter])
                delimited = Beam((*beam.tokens, delimiter), score)
                (finished if delimiter == self._end else candidates).append(delimited)
                if length - (self._second in beam.tokens) < max_tokens:
                    values, tokens = log_probabilities.where(self._usable, -torch.inf).topk(
                        min(beams, int(self._usable.sum()))
                    )
                    candidates.extend(
                        Beam((*beam.tokens, token), beam.score + value)
                        for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
                    )
            finished = sorted(finished, key=lambda each: -each.score)[:count]
            growing = sorted(candidates, key=lambda each: -each.score)[:beams]
            worst = finished[-1].score if len(finished) == count else -torch.inf
            growing = [beam for beam in growing if beam.score > worst]  # a continuation never raises a score
            if not growing:
                break
        return finished

    def _continuations(self, beams: Sequence[Beam]) -> Iterator[tuple[Beam, torch.Tensor]]:
        """Yield each beam with the mean over the definitions of (vocabulary,) log p(next token).

        All beams must have the same number of tokens.
        """
        definitions = len(self._states)
        size = max(1, _BATCH // definitions)
        start = self._model.config.decoder_start_token_id
        for begin in range(0, len(beams), size):
            part = beams[begin : begin + size]
            tokens = torch.tensor([[start, self._first, *beam.tokens] for beam in part], device=self._device)
            logits = self._model(
                decoder_input_ids=tokens.repeat_interleave(definitions, 0),
                encoder_outputs=(self._states.repeat(len(part), 1, 1),),
                attention_mask=self._mask.repeat(len(part), 1),
                use_cache=False,
            ).logits[:, -1]
            means = logits.float().log_softmax(-1).view(len(part), definitions, -1).mean(1)
            yield from zip(part, means, strict=True)

    def _usable_tokens(self, vocabulary: dict[str, int]) -> torch.Tensor:
        """Return (vocabulary,) bool: tokens of text, neither special tokens nor unused rows of the output
        table.
        """
        usable = torch.zeros(self._model.config.vocab_size, dtype=torch.bool, device=self._device)
        special = set(self._tokenizer.all_special_ids)
        usable[
            [
                number
                for token, number in vocabulary.items()
                if number not in special and not token.startswith("<extra_id_")
            ]
        ] = True
        return usable

    def _template(self, beam: Beam) -> str:
        """Return the template of finished spans, or "" if they contain a place for the text or the mask."""
        between = beam.tokens.index(self._second)
        before, after = beam.tokens[:between], beam.tokens[between + 1 : -1]
        # a piece of sentencepiece that follows a blank begins with ▁
        pieces = self._tokenizer.convert_ids_to_tokens(list(after[:1]))
        blank = " " if pieces and pieces[0].startswith("▁") else ""
        first, second = (self._tokenizer.decode(list(span)).strip() for span in (before, after))
        template = " ".join(f"{first} [MASK]{blank}{second} [X]".split())
        return template if (template.count("[MASK]"), template.count("[X]")) == (1, 1) else ""
