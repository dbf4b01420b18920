"""The flows: nights, trainings, augmentations and evaluations, whose stages run as tasks on workers."""
