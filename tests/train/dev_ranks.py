"""Measurements on dev by one of several ranks, for test_dev.py and test_masked_texts.py."""

from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import TrainedModel
from pipeline.objectives.masked_lm import MaskedLanguageModelling
from pipeline.settings import EncoderSettings
from pipeline.settings.training import DevSettings
from pipeline.train.dev import DevSet, MaskedTexts


def encoder_of(folder: Path) -> TrainableEncoder:
    """Load an encoder with dropout."""
    return load_trainable(open_folder(EncoderSettings(path=str(folder))), dropout=0.1)


def work(rank: int, world: int, folder: Path, encoder: Path, pairs: Path) -> None:
    """Measure the score; save it with the number of texts of each forward pass of this rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world
    )
    dev, model, texts_per_pass = DevSet.open(DevSettings(uri=str(pairs))), encoder_of(encoder), []
    model.register_forward_pre_hook(lambda _, inputs: texts_per_pass.append(len(inputs[0])))
    score = dev.score(TrainedModel(model))
    torch.save({"score": score, "texts_per_pass": texts_per_pass}, folder / f"{rank}.pt")
    dist.destroy_process_group()


def masked_work(rank: int, world: int, folder: Path, encoder: Path, texts: tuple[str, ...]) -> None:
    """Measure the log likelihood of masked words of the texts, and save it."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world
    )
    objective = MaskedLanguageModelling(encoder_of(encoder))
    torch.save(MaskedTexts("dev", texts).score(objective.trained_model(), objective), folder / f"{rank}.pt")
    dist.destroy_process_group()
