"""The work of each process in the test of the score on dev."""

from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import TrainedModel
from pipeline.settings import EncoderSettings
from pipeline.settings.watching import DevSettings
from pipeline.train.dev import DevSet


def encoder_of(folder: Path) -> TrainableEncoder:
    return load_trainable(open_folder(EncoderSettings(path=str(folder))), dropout=0.1)


def work(rank: int, world: int, folder: Path, encoder: Path, pairs: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world)
    dev, trained, passes = DevSet.open(DevSettings(uri=str(pairs))), encoder_of(encoder), []
    trained.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
    figure = dev.score(TrainedModel(trained))
    torch.save({"figure": figure, "passes": passes}, folder / f"{rank}.pt")
    dist.destroy_process_group()
