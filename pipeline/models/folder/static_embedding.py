"""Open folders of static embeddings: a table of token vectors, whose mean is the vector of a text.

sentence-transformers (StaticEmbedding) and model2vec write such folders, under different names of tensors,
and read texts differently: model2vec leaves out unknown tokens and reads at most 512 tokens. A folder is read
as by the library that wrote it. Imports neither torch nor transformers.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pipeline.errors import ModelError
from pipeline.models.folder.check_pooling import choose_pooling
from pipeline.models.folder.encoder_folder import ENDS_SENTENCES, MODEL2VEC, EncoderFolder
from pipeline.models.folder.modules import STATIC_EMBEDDING, ModuleEntry, read_json
from pipeline.models.folder.post_modules import tail_of
from pipeline.models.folder.reading import NO_LIMIT, prompts_of, similarity_of, truncation_of, truncation_side
from pipeline.models.folder.weight_files import path_inside
from pipeline.settings import EncoderSettings

TABLES = {"embedding.weight": STATIC_EMBEDDING, "embeddings": MODEL2VEC}
"""library that has written a folder, by the name of its table"""
_PER_TOKEN = ("mapping", "weights")  # model2vec's tensors with a value for each token
_MODEL2VEC_TOKENS = 512  # tokens that model2vec reads of a text, if config.json does not say
_WEIGHTS = "model.safetensors"
OWN_SETTINGS = "sentence_bert_config.json"  # has keys that only this project reads


def plain_model2vec(path: Path) -> list[ModuleEntry]:
    """Return the modules of a folder that model2vec wrote without modules.json; [] for other folders."""
    config = read_json(path / "config.json")
    if config.get("model_type", MODEL2VEC) != MODEL2VEC or "embeddings" not in _shapes(path):
        return []
    ending = [ModuleEntry("Normalize", "")] if config.get("normalize") else []
    return [ModuleEntry(STATIC_EMBEDDING, ""), *ending]


def open_static(path: Path, settings: EncoderSettings, modules: list[ModuleEntry]) -> EncoderFolder:
    """Open a folder whose first module is a table of token vectors.

    Raises:
        ModelError: the table or the tokenizer is missing or damaged.
    """
    inner = modules[0].folder
    folder = path / inner
    config = _describe(folder)
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(str(folder), "tokenizer.json beside the table", "no such file", "restore the file")
    if config["model_type"] == MODEL2VEC:
        _check_normalize(folder / "config.json", modules)
    prompt, query_prompt = prompts_of(settings, path)
    return EncoderFolder(
        path=path,
        family="static",
        dim=0,  # with_identity fills in dim and files
        max_length=settings.max_length or _limit(folder, config["model_type"]),
        pooling=choose_pooling(settings, ("mean",)),
        include_prompt=True,
        tail=tuple(tail_of(path, modules, settings)),
        prompt=prompt,
        query_prompt=query_prompt,
        lower=False,
        truncation_side=truncation_side(folder),
        transformer=inner,
        weights=(path_inside(inner, _WEIGHTS),),
        files={},
        config=config,
        template=settings.template,
        similarity=similarity_of(path),
        ends_sentences=settings.ensure_final_punctuation
        or bool(read_json(folder / OWN_SETTINGS).get(ENDS_SENTENCES)),
    )


def _check_normalize(file: Path, modules: list[ModuleEntry]) -> None:
    """Check that config.json and modules.json, each obeyed by one library, agree on the normalization."""
    wanted, has_module = read_json(file).get("normalize"), any(each.kind == "Normalize" for each in modules)
    if isinstance(wanted, bool) and wanted != has_module:
        raise ModelError(
            str(file),
            f"normalize {str(has_module).lower()}, as by the Normalize modules of modules.json",
            str(wanted).lower(),
            "correct one of the two files",
        )


def _describe(folder: Path) -> dict[str, Any]:
    """Return the table's sizes, and the library that wrote it, under the keys of a config.json."""
    shapes = _shapes(folder)
    name = next((name for name in TABLES if name in shapes), None)
    if name is None:
        raise ModelError(
            str(folder / _WEIGHTS),
            f"a table of token vectors as {' or '.join(TABLES)}",
            ", ".join(sorted(shapes)[:3]) or "no tensor, or no such file",
            "save the model again in safetensors format",
        )
    lengths = [shapes[extra][0] for extra in _PER_TOKEN if shapes.get(extra)]
    if len(shapes[name]) != 2 or len(set(lengths)) > 1:
        raise ModelError(
            str(folder / _WEIGHTS),
            f"a matrix {name}, and {' and '.join(_PER_TOKEN)} of one length",
            ", ".join(f"{each} of shape {list(shape)}" for each, shape in sorted(shapes.items())),
            "restore the file",
        )
    rows, width = shapes[name]
    return {
        "model_type": TABLES[name],
        "hidden_size": width,
        "vocab_size": lengths[0] if lengths else rows,
    }


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of the tensors in model.safetensors; {} if there is no such file."""
    file = folder / _WEIGHTS
    if not file.is_file():
        return {}
    try:
        with safe_open(str(file), framework="np") as opened:
            names = opened.keys()
            return {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    except (SafetensorError, OSError) as error:
        raise ModelError(
            str(file), "a complete safetensors file", " ".join(str(error).split()), "fetch the file again"
        ) from None


def _limit(folder: Path, library: str) -> int:
    """Return the number of tokens that the library reads of a text."""
    if library == MODEL2VEC:
        file = folder / "config.json"
        limit = read_json(file).get("max_length", _MODEL2VEC_TOKENS)
    else:
        file = folder / "tokenizer.json"
        limit = truncation_of(folder).get("max_length")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ModelError(
            str(file), "max_length as a whole number, 1 or more", repr(limit), "restore the file"
        )
    return NO_LIMIT if limit is None else limit
