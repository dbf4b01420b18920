"""Training of encoders: batches, gradients, optimizer and schedule, checkpoints, metrics.

Independent of where rows come from and of the cluster. Import from the modules; `loop.fit` is the training
loop, `flow` trains the transform of BERT-flow.
"""
