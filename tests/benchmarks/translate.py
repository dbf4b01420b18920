"""Translations per second against a plain loop of transformers' generate; BLEU of the evaluation models;
twenty captions translated there and back.

    MANTA_EVAL_DATA=... MANTA_EVAL_MODELS=... python -m tests.benchmarks.translate speed --pairs 5
    MANTA_EVAL_DATA=... MANTA_EVAL_MODELS=... python -m tests.benchmarks.translate bleu MANTA_EVAL_DATA=...
    MANTA_EVAL_MODELS=... python -m tests.benchmarks.translate show

`speed`: English captions to German, the same model, threads, decoding and bounds. The peer takes the texts as
they come, tokenizes, pads and generates batch by batch with the fixed batch size that is its best one on a
part of them; ours is the leg as an augmentation runs it, from text to text. One run of each in turn.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch

from pipeline.augment import AUGMENTERS, StageInput
from pipeline.device import Device
from pipeline.settings.augment import AugmentSettings, DecodingSettings
from tests.benchmarks.machine import machine, print_table, spread

SIZES = (8, 16, 32, 64, 128)  # batches of the peer
TRIED = 256  # captions that its best size is found on
DECODINGS = {
    "greedy": DecodingSettings(),
    "sample": DecodingSettings(method="sample"),
    "sample top 10": DecodingSettings(method="sample", top_k=10),
    "beam 4": DecodingSettings(method="beam", beams=4),
}


def model_path(pair: str) -> str:
    return str(Path(os.environ["MANTA_EVAL_MODELS"]) / f"translation-{pair}")


def captions(count: int) -> list[str]:
    """Distinct ones, as they come."""
    table = ds.dataset(Path(os.environ["MANTA_EVAL_DATA"]) / "captions" / "shards").head(
        3 * count, columns=["text"]
    )
    return list(dict.fromkeys(table["text"].to_pylist()))[:count]


def working(pair: str, decoding: DecodingSettings, batch_tokens: int | None = None) -> Any:
    """One leg, loaded."""
    options = {
        "legs": [{"path": model_path(pair), "decoding": decoding.model_dump(), "batch_tokens": batch_tokens}]
    }
    leg = AUGMENTERS["back_translation"].model_validate(options).model_stages()[0]  # type: ignore[attr-defined]
    return leg.start(Device("cpu"), AugmentSettings(threads=torch.get_num_threads()))


def translated(working: Any, texts: Sequence[str]) -> list[str]:
    found = dict(working([StageInput(text, str(place).encode()) for place, text in enumerate(texts)]))
    return [found[place].texts[0] for place in range(len(texts))]


class Peer:
    """The loop that people write."""

    def __init__(self, pair: str, decoding: DecodingSettings) -> None:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        self._model, self._tokenizer = (
            AutoModelForSeq2SeqLM.from_pretrained(model_path(pair)).eval(),
            AutoTokenizer.from_pretrained(model_path(pair)),
        )
        self._decoding, self.size = decoding, SIZES[0]
        self._options: dict[str, Any] = {
            "greedy": {"num_beams": 1, "do_sample": False},
            "beam": {
                "num_beams": decoding.beams,
                "do_sample": False,
                "length_penalty": decoding.length_penalty,
            },
            "sample": {
                "num_beams": 1,
                "do_sample": True,
                "top_k": decoding.top_k or 0,
                "top_p": decoding.top_p,
                "temperature": decoding.temperature,
            },
        }[decoding.method]
        self.tokens_in = self.tokens_out = self.padding = self.steps = 0

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> list[str]:
        self.tokens_in = self.tokens_out = self.padding = self.steps = 0
        found: list[str] = []
        for place in range(0, len(texts), self.size):
            given = self._tokenizer(
                list(texts[place : place + self.size]),
                padding=True,
                return_tensors="pt",
                return_token_type_ids=False,
            )
            ids = given["input_ids"]
            most = min(
                int(self._decoding.max_ratio * ids.shape[1] + self._decoding.max_extra),
                self._model.config.max_position_embeddings,
            )
            made = self._model.generate(**given, max_new_tokens=most, **self._options)
            self._count(given["attention_mask"], made[:, 1:])
            found += self._tokenizer.batch_decode(made, skip_special_tokens=True)
        return found

    def _count(self, mask: torch.Tensor, made: torch.Tensor) -> None:
        self.tokens_in += int(mask.sum())
        self.padding += int((1 - mask).sum())
        self.tokens_out += int((made != self._model.config.pad_token_id).sum())
        self.steps += made.numel()

    def choose(self, texts: Sequence[str]) -> str:
        """Sets the best batch size; sentences per second with each of them."""
        rates = {}
        for self.size in SIZES:
            rates[self.size] = len(texts) / seconds(lambda: self(texts))
        self.size = max(rates, key=rates.__getitem__)
        return ", ".join(f"{size}: {rate:.0f}" for size, rate in rates.items())


def seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(names: Sequence[str], count: int, pairs: int, batch_tokens: int | None) -> None:
    texts, lines = captions(count), []
    for name in names:
        decoding = DECODINGS[name]
        peer, own = Peer("en-de", decoding), working("en-de", decoding, batch_tokens)
        print(
            f"{name}: the peer's sentences per second by batch size: {peer.choose(texts[:TRIED])}", flush=True
        )
        translated(own, texts[:TRIED])
        took: dict[str, list[float]] = {"peer": [], "ours": []}
        for turn in range(pairs):
            works = {"peer": lambda peer=peer: peer(texts), "ours": lambda own=own: translated(own, texts)}
            for side in list(works) if turn % 2 else list(works)[::-1]:
                took[side].append(seconds(works[side]))
        ratios = [a / b for a, b in zip(took["peer"], took["ours"], strict=True)]
        own = working("en-de", decoding, batch_tokens)
        translated(own, texts)
        wasted = f"{1 - peer.tokens_out / peer.steps:.0%}"
        lines += [
            line(
                f"{name}, peer, batches of {peer.size}",
                took["peer"],
                count,
                peer.tokens_out,
                peer.padding,
                peer.tokens_in,
                wasted,
                "",
            ),
            line(
                f"{name}, ours",
                took["ours"],
                count,
                own.stats.tokens_out,
                own.stats.padding,
                own.stats.tokens_in,
                "",
                spread(ratios),
            ),
        ]
    header = (
        "decoding",
        "sentences/s",
        "tokens written/s",
        "source padding",
        "written after the end",
        "ours / peer",
    )
    print_table(
        (
            f"{count:,} captions, en-de, {torch.get_num_threads()} thread(s), {pairs} interleaved pairs; "
            f"{machine()}"
        ),
        lines,
        header,
    )


def line(
    name: str,
    took: Sequence[float],
    count: int,
    tokens: int,
    padding: int,
    given: int,
    wasted: str,
    ratio: str,
) -> list[str]:
    return [
        name,
        spread([count / each for each in took], ".0f"),
        spread([tokens / each for each in took], ",.0f"),
        f"{padding / (padding + given):.1%}",
        wasted,
        ratio,
    ]


def print_bleu() -> None:
    """With sacrebleu's defaults, as the models' card states it."""
    import sacrebleu

    file = Path(os.environ["MANTA_EVAL_DATA"]) / "parallel" / "multi30k.en-de.parquet"
    table = pq.read_table(file, filters=[("split", "=", "test_2016")])
    lines = []
    for pair, columns in (("en-de", ("src", "tgt")), ("de-en", ("tgt", "src"))):
        source, target = (table[name].to_pylist() for name in columns)
        scores = [
            f"{sacrebleu.corpus_bleu(translated(working(pair, DECODINGS[name]), source), [target]).score:.1f}"
            for name in ("greedy", "beam 4")
        ]
        lines.append([pair, f"{len(source):,}", *scores])
    print_table(f"BLEU on test_2016; {machine()}", lines, ("pair", "sentences", "greedy", "beam 4"))


def show(count: int) -> None:
    """Greedy there and back; twenty of them, evenly spread."""
    texts = captions(count)
    forth = translated(working("en-de", DECODINGS["greedy"]), texts)
    back = translated(working("de-en", DECODINGS["greedy"]), forth)
    same = sum(a == b for a, b in zip(texts, back, strict=True))
    print(f"\n{same:,} of {count:,} captions come back unchanged ({same / count:.1%})\n")
    for place in range(0, count, count // 20):
        print(f"{texts[place]}\n    {forth[place]}\n    {back[place]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["speed", "bleu", "show"])
    parser.add_argument(
        "--decoding",
        nargs="*",
        default=["greedy", "sample", "sample top 10", "beam 4"],
        choices=list(DECODINGS),
    )
    parser.add_argument("--texts", type=int, default=2_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    works = {
        "speed": lambda: compare(
            arguments.decoding, arguments.texts, arguments.pairs, arguments.batch_tokens
        ),
        "bleu": print_bleu,
        "show": lambda: show(arguments.texts),
    }
    works[arguments.what]()


if __name__ == "__main__":
    main()
