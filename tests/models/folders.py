"""Small random encoders of every family, made with transformers and saved as users' folders are."""

import json
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.numpy import load_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from pipeline.models.folder.folder import EncoderFolder, open_folder
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings

TEXTS = (
    "A man in a blue shirt stands on a ladder and cleans a window.",
    "Two dogs run.",
    "",
    "the cat's café — déjà vu!",
    "x",
    "A girl reads a book on the grass.",
    "Numbers 1234567 and 3.14159, again 1234567.",
    "Two dogs run.",
    "日本 and 中国 are words too",
    "a " * 30,
    "Schnee liegt auf dem Dach der alten Mühle am Fluss.",
)
LONG = "The quick brown fox jumps over the lazy dog near the river bank, then it sleeps. " * 40
SIZES = {
    "vocab_size": 300,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 66,
}
_DISTIL = {
    "vocab_size": 300,
    "dim": 48,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 96,
    "max_position_embeddings": 66,
}
FAMILIES = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
    "roberta": lambda: transformers.RobertaModel(
        transformers.RobertaConfig(**SIZES, pad_token_id=1, layer_norm_eps=1e-5, type_vocab_size=1)
    ),
    "xlm-roberta": lambda: transformers.XLMRobertaModel(
        transformers.XLMRobertaConfig(**SIZES, pad_token_id=1, type_vocab_size=1)
    ),
    "distilbert": lambda: transformers.DistilBertModel(transformers.DistilBertConfig(**_DISTIL)),
    "mpnet": lambda: transformers.MPNetModel(transformers.MPNetConfig(**SIZES, pad_token_id=1)),
    "electra": lambda: transformers.ElectraModel(transformers.ElectraConfig(**SIZES, embedding_size=48)),
}


def save_folder(folder: Path, family: str, seed: int = 0) -> Path:
    """Write a plain Hugging Face folder of a random model of a family."""
    torch.manual_seed(seed)
    model = FAMILIES[family]().eval()
    add_noise(model, 0.15)
    model.save_pretrained(folder)
    tokenizer = (
        byte_level() if family in ("roberta", "xlm-roberta") else word_piece(pads_second=family == "mpnet")
    )
    save_tokenizer(tokenizer, folder)
    return folder


def add_noise(module: torch.nn.Module, deviation: float) -> None:
    """Add normal noise from torch's generator to all parameters.

    As transformers initializes a model, texts look alike, all biases are 0 and all norms 1.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * deviation)


def save_tokenizer(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """Write the tokenizer files of an encoder that reads 64 tokens."""
    names = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
    }
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, **names
    ).save_pretrained(folder)


def folder_of_language_model(folder: Path, seed: int = 0, family: str = "bert") -> Path:
    """Write the folder of a random model with a head for masked words, unless it exists."""
    if not folder.exists():
        save_folder(folder, family, seed)
        headless = transformers.AutoModel.from_pretrained(folder)
        model = transformers.AutoModelForMaskedLM.from_config(headless.config)
        model.base_model.load_state_dict(
            {name: value for name, value in headless.state_dict().items() if not name.startswith("pooler")}
        )
        model.save_pretrained(folder)
    return folder


def word_piece(pads_second: bool = False) -> tokenizers.Tokenizer:
    """Make a WordPiece tokenizer of the texts above, where [PAD] has id 0, or id 1 as in MPNet."""
    cleaner, splitter = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    texts = map(cleaner.normalize_str, (*TEXTS, LONG))
    words = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(text))
    pieces = [*_specials(pads_second), *_word_pieces(words, 290 - len(_specials(pads_second)))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = cleaner, splitter
    tokenizer.add_special_tokens(_specials(pads_second))
    return _framed(tokenizer)


def _word_pieces(words: Counter[str], limit: int) -> list[str]:
    """Return at most `limit` pieces: all characters, then the most frequent merges.

    Equal words give equal pieces; `tokenizers.trainers.WordPieceTrainer` may give others in each process.
    """
    split = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in sorted(words)}
    pieces = sorted({piece for parts in split.values() for piece in parts})
    while len(pieces) < limit:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        first, second = max(pairs, key=lambda pair: (pairs[pair], pair))
        merged = first + second.removeprefix("##")
        pieces.append(merged)
        for parts in split.values():
            for start in range(len(parts) - 2, -1, -1):
                if parts[start : start + 2] == [first, second]:
                    parts[start : start + 2] = [merged]
    return list(dict.fromkeys(pieces))


def byte_level() -> tokenizers.Tokenizer:
    """Train a byte-level BPE tokenizer on the texts above, where [PAD] has id 1 as in RoBERTa."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=298, special_tokens=_specials(True), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS, LONG], trainer)
    return _framed(tokenizer)


def _specials(pads_second: bool) -> list[str]:
    return (
        ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
        if pads_second
        else ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    )


def _framed(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Put every text between [CLS] and [SEP]."""
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


def folder_at(path: Path | str, **settings: object) -> EncoderFolder:
    """Open an encoder folder with these settings."""
    return open_folder(EncoderSettings.model_validate({"path": str(path), **settings}))


def encoder_at(path: Path | str, **settings: object) -> Encoder:
    """Load an encoder folder for inference with these settings."""
    return load_encoder(EncoderSettings.model_validate({"path": str(path), **settings}), EncodeSettings())


def hidden_states(folder: Path, text: str, max_length: int = 64) -> list[torch.Tensor]:
    """Compute H[0] to H[n] of one text, each (tokens, d), with transformers and without padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        ids = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")["input_ids"]
        return [state[0] for state in model(input_ids=ids, output_hidden_states=True).hidden_states]


def table_rows(folder: Path, text: str, max_length: int = 64) -> np.ndarray:
    """Return the rows of the word table for the tokens of one text, (tokens, d)."""
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text, truncation=True, max_length=max_length)[
        "input_ids"
    ]
    tensors = load_file(folder / "model.safetensors")
    return next(tensor for name, tensor in tensors.items() if name.endswith("word_embeddings.weight"))[ids]


def edit_json(file: Path, **changes: object) -> None:
    """Replace some keys of a file, which is written if it does not exist. The value ... removes a key."""
    known = json.loads(file.read_text()) if file.exists() else {}
    values = {name: value for name, value in (known | changes).items() if value is not ...}
    file.write_text(json.dumps(values))


def copy_listed_files(folder: EncoderFolder, path: Path) -> Path:
    """Copy the files that an encoder folder lists to a new folder at `path`."""
    for name in folder.files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder.file(name), path / name)
    return path
