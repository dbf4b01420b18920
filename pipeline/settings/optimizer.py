"""Settings of the optimizer of a training and of its learning rate over the steps."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config import Settings


class OptimizerSettings(Settings):
    """The optimizer: its learning rate, weight decay and limits."""

    name: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    """adam adds the weight decay to the gradient, adamw subtracts it from the weights"""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-5
    """highest learning rate of the schedule"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """weight decay of matrices; biases and normalization layers have none"""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """coefficients of the running averages in adamw and adam"""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """number that adamw, adam and rmsprop add to the denominator"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """momentum of sgd and rmsprop"""
    clip: Annotated[float, Field(gt=0)] | None = 1.0
    """largest norm of the gradient; null: no limit"""


class ScheduleSettings(Settings):
    """The learning rate over the steps."""

    name: Literal["linear", "cosine", "constant", "stairs", "plateau"] = "linear"
    """linear and cosine fall to `final` after the last step; stairs follows `stairs`; plateau multiplies the
    rate by `decay` after every epoch and by `drop` whenever the score on dev has fallen, and ends the
    training when the rate is below `least` (Conneau et al. 2017)"""
    warmup: Annotated[float, Field(ge=0)] = 0.0
    """steps in which the learning rate rises linearly; below 1: a proportion of all steps"""
    final: Annotated[float, Field(ge=0)] = 0.0
    """linear and cosine: the learning rate to which they fall"""
    stairs: dict[int, float] = {}
    """step -> learning rate from this step on"""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.99
    """plateau: factor of the learning rate after every epoch"""
    drop: Annotated[float, Field(gt=0, le=1)] = 0.2
    """plateau: factor of the learning rate whenever the score on dev has fallen"""
    least: Annotated[float, Field(ge=0)] = 1e-5
    """plateau: a learning rate below this ends the training"""
