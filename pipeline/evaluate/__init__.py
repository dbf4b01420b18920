"""Evaluation tasks for sentence vectors, one kind of task per file; the registry finds them.

A task calls a function for the vectors of its sentences, and computes a score from them. Other packages
import the names below, `tasks.select_tasks`, and the modules `bootstrap` and `mteb`.
"""

from pipeline.evaluate.task import EvaluationTask, Score, Vectors
from pipeline.registry import Registry

TASKS: Registry[type[EvaluationTask]] = Registry("kind of task", __name__)

__all__ = ["TASKS", "EvaluationTask", "Score", "Vectors"]
