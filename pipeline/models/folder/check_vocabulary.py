"""Compare the tokens of a folder's tokenizer with the rows of its model's word table."""

from pathlib import Path

from pipeline.errors import ModelError
from pipeline.models.folder.modules import read_json
from pipeline.text.tokens.listed_tokens import listed_tokens
from pipeline.text.tokens.tokens import Tokenizer


def check_vocabulary(folder: Path, tokenizer: Tokenizer, rows: int | None) -> None:
    """Check that every token that plain text can have has a row in the word table.

    Special tokens are exempt: Gemma's tokenizer has one for images, for which models of texts have no row.

    Args:
        folder: folder of the tokenizer's files.
        tokenizer: the folder's tokenizer.
        rows: rows of the word table; None: unknown.

    Raises:
        ModelError: tokens have no row; the message names the first ones and their number.
    """
    beyond = {name: number for name, number in tokenizer.vocabulary().items() if rows and number >= rows}
    if not beyond:
        return
    special = {
        str(token.get("content"))
        for token in read_json(folder / "tokenizer.json").get("added_tokens") or ()
        if token.get("special")
    }
    special |= {token.content for token in listed_tokens(folder) if token.special}
    used = {*tokenizer.prefix, *tokenizer.suffix}
    if missing := sorted(name for name, number in beyond.items() if name not in special or number in used):
        shown = f"{', '.join(map(repr, missing[:3]))}{' ...' if len(missing) > 3 else ''}"
        raise ModelError(
            str(folder),
            f"a tokenizer whose tokens have ids below vocab_size {rows}",
            f"{len(missing)} tokens without a row in the word table: {shown}",
            "resize the model's word table (resize_token_embeddings), or remove these tokens",
        )
