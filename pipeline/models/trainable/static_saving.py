"""Save trained tables of token vectors, for the library that wrote the table they were trained from."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from pipeline.models.folder.encoder_folder import ENDS_SENTENCES, MODEL2VEC, EncoderFolder
from pipeline.models.folder.modules import read_json
from pipeline.models.folder.reading import NO_LIMIT
from pipeline.models.folder.static_embedding import OWN_SETTINGS, TABLES
from pipeline.models.trainable.encoder import TrainableEncoder


def write_static(encoder: TrainableEncoder, folder: EncoderFolder, to: Path) -> None:
    """Write table, tokenizer and limits of an encoder whose backbone is a table, as float32, without modules.

    A mapping and weights of model2vec are part of the trained table.
    """
    import tokenizers

    library = folder.config["model_type"]
    name = next(name for name, each in TABLES.items() if each == library)
    table = encoder.backbone.word_table.detach().to("cpu", torch.float32, copy=True).contiguous()
    save_file({name: table}, to / "model.safetensors", metadata={"format": "pt"})
    limit = folder.max_length if folder.max_length < NO_LIMIT else None
    backend = tokenizers.Tokenizer.from_file(str(folder.transformer_path / "tokenizer.json"))
    backend.no_truncation()
    if limit is not None:
        backend.enable_truncation(limit, direction="left" if folder.truncation_side == "start" else "right")
    backend.save(str(to / "tokenizer.json"), pretty=False)
    if folder.ends_sentences:
        (to / OWN_SETTINGS).write_text(json.dumps({ENDS_SENTENCES: True}))
    if library == MODEL2VEC:
        config = read_json(folder.transformer_path / "config.json")
        config.pop("vocabulary_quantization", None)
        changed = {"normalize": folder.normalize, "max_length": limit, "embedding_dtype": "float32"}
        (to / "config.json").write_text(json.dumps({"model_type": MODEL2VEC, **config, **changed}, indent=1))
