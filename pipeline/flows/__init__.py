"""Flows: nights, trainings, augmentations and evaluations. Their stages run as tasks on workers."""
