"""Measure translation: speed against transformers' generate, BLEU, and examples of back-translations.

    export MANTA_EVAL_DATA=... MANTA_EVAL_MODELS=...
    python -m tests.benchmarks.translate speed --pairs 5
    python -m tests.benchmarks.translate bleu
    python -m tests.benchmarks.translate show

`speed` translates English captions into German with the same model, threads, decoding and length bounds. The
peer is a loop that tokenizes, pads and translates the texts in their order, with the batch size that was
fastest on a part of them. Manta's stage runs as in an augmentation. The two take turns, `--pairs` times.
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

PEER_BATCH_SIZES = (8, 16, 32, 64, 128)
TRIAL_TEXTS = 256  # captions to find the peer's best batch size
DECODINGS = {
    "greedy": DecodingSettings(),
    "sample": DecodingSettings(method="sample"),
    "sample top 10": DecodingSettings(method="sample", top_k=10),
    "beam 4": DecodingSettings(method="beam", beams=4),
}


def model_path(pair: str) -> str:
    return str(Path(os.environ["MANTA_EVAL_MODELS"]) / f"translation-{pair}")


def captions(count: int) -> list[str]:
    """Read distinct captions, in the order of the files."""
    table = ds.dataset(Path(os.environ["MANTA_EVAL_DATA"]) / "captions" / "shards").head(
        3 * count, columns=["text"]
    )
    return list(dict.fromkeys(table["text"].to_pylist()))[:count]


def load_stage(pair: str, decoding: DecodingSettings, batch_tokens: int | None = None) -> Any:
    """Load the translation stage of an augmentation."""
    options = {
        "legs": [{"path": model_path(pair), "decoding": decoding.model_dump(), "batch_tokens": batch_tokens}]
    }
    stage = AUGMENTERS["back_translation"].model_validate(options).model_stages()[0]  # type: ignore[attr-defined]
    return stage.start(Device("cpu"), AugmentSettings(threads=torch.get_num_threads()))


def translate_all(stage: Any, texts: Sequence[str]) -> list[str]:
    """Return the first translation of each text."""
    found = dict(stage([StageInput(text, str(index).encode()) for index, text in enumerate(texts)]))
    return [found[index].texts[0] for index in range(len(texts))]


class Peer:
    """A plain loop around transformers' generate."""

    def __init__(self, pair: str, decoding: DecodingSettings) -> None:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        self._model, self._tokenizer = (
            AutoModelForSeq2SeqLM.from_pretrained(model_path(pair)).eval(),
            AutoTokenizer.from_pretrained(model_path(pair)),
        )
        self._decoding, self.size = decoding, PEER_BATCH_SIZES[0]
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
        for index in range(0, len(texts), self.size):
            tokens = self._tokenizer(
                list(texts[index : index + self.size]),
                padding=True,
                return_tensors="pt",
                return_token_type_ids=False,
            )
            ids = tokens["input_ids"]
            most = min(
                int(self._decoding.max_ratio * ids.shape[1] + self._decoding.max_extra),
                self._model.config.max_position_embeddings,
            )
            outputs = self._model.generate(**tokens, max_new_tokens=most, **self._options)
            self._count(tokens["attention_mask"], outputs[:, 1:])
            found += self._tokenizer.batch_decode(outputs, skip_special_tokens=True)
        return found

    def _count(self, mask: torch.Tensor, outputs: torch.Tensor) -> None:
        self.tokens_in += int(mask.sum())
        self.padding += int((1 - mask).sum())
        self.tokens_out += int((outputs != self._model.config.pad_token_id).sum())
        self.steps += outputs.numel()

    def choose(self, texts: Sequence[str]) -> str:
        """Choose the best batch size. Returns the sentences per second with each size, for printing."""
        rates = {}
        for self.size in PEER_BATCH_SIZES:
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
        peer, stage = Peer("en-de", decoding), load_stage("en-de", decoding, batch_tokens)
        print(
            f"{name}: the peer's sentences per second by batch size: {peer.choose(texts[:TRIAL_TEXTS])}",
            flush=True,
        )
        translate_all(stage, texts[:TRIAL_TEXTS])
        durations: dict[str, list[float]] = {"peer": [], "ours": []}
        for turn in range(pairs):
            functions = {
                "peer": lambda peer=peer: peer(texts),
                "ours": lambda stage=stage: translate_all(stage, texts),
            }
            for side in list(functions) if turn % 2 else list(functions)[::-1]:
                durations[side].append(seconds(functions[side]))
        ratios = [a / b for a, b in zip(durations["peer"], durations["ours"], strict=True)]
        stage = load_stage("en-de", decoding, batch_tokens)
        translate_all(stage, texts)
        wasted = f"{1 - peer.tokens_out / peer.steps:.0%}"
        lines += [
            line(
                f"{name}, peer, batches of {peer.size}",
                durations["peer"],
                count,
                peer.tokens_out,
                peer.padding,
                peer.tokens_in,
                wasted,
                "",
            ),
            line(
                f"{name}, ours",
                durations["ours"],
                count,
                stage.stats.tokens_out,
                stage.stats.padding,
                stage.stats.tokens_in,
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
    durations: Sequence[float],
    count: int,
    tokens: int,
    padding: int,
    given: int,
    wasted: str,
    ratio: str,
) -> list[str]:
    return [
        name,
        spread([count / each for each in durations], ".0f"),
        spread([tokens / each for each in durations], ",.0f"),
        f"{padding / (padding + given):.1%}",
        wasted,
        ratio,
    ]


def print_bleu() -> None:
    """Print BLEU with sacrebleu's defaults, as in the models' cards."""
    import sacrebleu

    file = Path(os.environ["MANTA_EVAL_DATA"]) / "parallel" / "multi30k.en-de.parquet"
    table = pq.read_table(file, filters=[("split", "=", "test_2016")])
    lines = []
    for pair, columns in (("en-de", ("src", "tgt")), ("de-en", ("tgt", "src"))):
        source, target = (table[name].to_pylist() for name in columns)
        scores = []
        for name in ("greedy", "beam 4"):
            translations = translate_all(load_stage(pair, DECODINGS[name]), source)
            scores.append(f"{sacrebleu.corpus_bleu(translations, [target]).score:.1f}")
        lines.append([pair, f"{len(source):,}", *scores])
    print_table(f"BLEU on test_2016; {machine()}", lines, ("pair", "sentences", "greedy", "beam 4"))


def show(count: int) -> None:
    """Translate captions to German and back, greedily, and print twenty of them."""
    texts = captions(count)
    forth = translate_all(load_stage("en-de", DECODINGS["greedy"]), texts)
    back = translate_all(load_stage("de-en", DECODINGS["greedy"]), forth)
    same = sum(a == b for a, b in zip(texts, back, strict=True))
    print(f"\n{same:,} of {count:,} captions come back unchanged ({same / count:.1%})\n")
    for index in range(0, count, max(1, count // 20)):
        print(f"{texts[index]}\n    {forth[index]}\n    {back[index]}")


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
    functions = {
        "speed": lambda: compare(
            arguments.decoding, arguments.texts, arguments.pairs, arguments.batch_tokens
        ),
        "bleu": print_bleu,
        "show": lambda: show(arguments.texts),
    }
    functions[arguments.what]()


if __name__ == "__main__":
    main()
