"""Small random sequence-to-sequence models of every family, whose tokenizers know a few sentences."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    NllbTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

SENTENCES = (
    "a man plays a guitar",
    "two dogs run over the grass",
    "a woman in a red coat reads a book",
    "the children eat ice cream at the beach",
    "people dance",
    "an old man sleeps in the park while a dog runs",
)
SENTINELS = ("<extra_id_0>", "<extra_id_1>", "<extra_id_2>")  # of T5, around spans of text
POSITIONS = 48
_SIZES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": POSITIONS,
    "init_std": 0.3,
}


def _pieces() -> list[str]:
    """List all characters and all words of the sentences as SentencePiece does."""
    words = sorted({f"▁{word}" for sentence in SENTENCES for word in sentence.split()})
    return ["▁", *sorted(set("".join(words)) - {"▁"}), *words]


def _scored(*special: str) -> list[tuple[str, float]]:
    """Return special tokens and pieces with log probabilities; a word is likelier than its letters."""
    return [
        *((token, 0.0) for token in special),
        *((piece, -float(2 if len(piece) > 1 else 6)) for piece in _pieces()),
    ]


def _sentencepiece(folder: Path, name: str) -> Path:
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(folder / name),
        vocab_size=60,
        model_type="unigram",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return folder / f"{name}.model"


def _marian(folder: Path) -> tuple[Any, Any]:
    import sentencepiece

    spm = _sentencepiece(folder, "spm")
    pieces = sentencepiece.SentencePieceProcessor(str(spm))
    known = [pieces.id_to_piece(number) for number in range(3, len(pieces))]
    vocabulary = {
        token: number for number, token in enumerate(["</s>", "<unk>", ">>deu<<", ">>fra<<", *known, "<pad>"])
    }
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = MarianTokenizer(
        str(spm), str(spm), str(folder / "vocab.json"), source_lang="en", target_lang="de"
    )
    pad = vocabulary["<pad>"]
    config = MarianConfig(
        **_SIZES,
        vocab_size=len(vocabulary),
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        scale_embedding=True,
        activation_function="swish",
    )
    model = MarianMTModel(config)
    model.generation_config.bad_words_ids = [[pad]]
    model.final_logits_bias.normal_()
    return model, tokenizer


def _m2m100(folder: Path) -> tuple[Any, Any]:
    import sentencepiece

    spm = _sentencepiece(folder, "spm")
    pieces = sentencepiece.SentencePieceProcessor(str(spm))
    tokens = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        *(pieces.id_to_piece(number) for number in range(3, len(pieces))),
    ]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    tokenizer = M2M100Tokenizer(str(folder / "vocab.json"), str(spm))
    config = M2M100Config(
        **_SIZES, vocab_size=len(tokenizer.encoder) + len(tokenizer.lang_code_to_id) + 8, scale_embedding=True
    )
    return M2M100ForConditionalGeneration(config), tokenizer


def _nllb(folder: Path) -> tuple[Any, Any]:
    tokens = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        *dict.fromkeys([*_pieces(), *(piece[:end] for piece in _pieces() for end in range(1, len(piece)))]),
    ]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    merges = [
        (token[:-1], token[-1])
        for token in vocabulary
        if len(token) > 1 and token[:-1] in vocabulary and token[-1] in vocabulary
    ]
    tokenizer = NllbTokenizer(vocab=vocabulary, merges=merges)
    config = M2M100Config(**_SIZES, vocab_size=len(tokenizer), scale_embedding=True)
    return M2M100ForConditionalGeneration(config), tokenizer


def _mbart50(folder: Path) -> tuple[Any, Any]:
    tokenizer = MBart50Tokenizer(vocab=[("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *_scored()])
    config = MBartConfig(**_SIZES, vocab_size=len(tokenizer), decoder_start_token_id=2, scale_embedding=True)
    return MBartForConditionalGeneration(config), tokenizer


def _mbart25(folder: Path) -> tuple[Any, Any]:
    tokenizer = MBartTokenizer(
        vocab=[
            *_scored("<s>", "<pad>", "</s>", "<unk>"),
            *((code, 0.0) for code in ("en_XX", "de_DE")),
            ("<mask>", 0.0),
        ]
    )
    config = MBartConfig(**_SIZES, vocab_size=len(tokenizer), scale_embedding=False)
    return MBartForConditionalGeneration(config), tokenizer


def _t5(folder: Path) -> tuple[Any, Any]:
    tokenizer = T5Tokenizer(
        vocab=_scored("<pad>", "</s>", "<unk>"), extra_ids=0, additional_special_tokens=list(SENTINELS)
    )
    config = T5Config(
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        vocab_size=len(tokenizer),
        n_positions=POSITIONS,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
        initializer_factor=3.0,
    )
    return T5ForConditionalGeneration(config), tokenizer


FAMILIES: dict[str, Callable[[Path], tuple[Any, Any]]] = {
    "marian": _marian,
    "m2m100": _m2m100,
    "nllb": _nllb,
    "mbart50": _mbart50,
    "mbart25": _mbart25,
    "t5": _t5,
}
LANGUAGES: dict[str, dict[str, str]] = {
    "marian": {"prefix": ">>deu<< "},
    "m2m100": {"source": "en", "target": "de"},
    "nllb": {"source": "eng_Latn", "target": "deu_Latn"},
    "mbart50": {"source": "en_XX", "target": "de_DE"},
    "mbart25": {"source": "en_XX", "target": "de_DE"},
    "t5": {"prefix": "people dance a man "},
}


def _first_language_token(tokenizer: Any) -> int:
    """Return the smallest id of a language, padding or mask token that follows the tokens of texts."""
    special = {
        *tokenizer.convert_tokens_to_ids(["de_DE", "deu_Latn", "ar_AR", "ace_Arab", "<pad>", "<mask>"]),
        tokenizer.vocab_size,
    }
    return min(number for number in special if number is not None and number > 5)


def save_translator(folder: Path, family: str, seed: int = 1) -> Path:
    """Write the folder of a random model of that family.

    Every third token ends a translation, because a random model would hardly ever produce a single end token.
    """
    torch.manual_seed(seed)
    model, tokenizer = FAMILIES[family](folder / "made")
    with torch.no_grad():
        # with larger vectors of tokens, each token would predict itself again and again
        model.get_input_embeddings().weight.mul_(0.3)
    model.generation_config.eos_token_id = [
        model.generation_config.eos_token_id,
        *range(5, _first_language_token(tokenizer), 3),
    ]
    model.eval().save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"
