"""Training of encoders: batches, gradients, optimizer and schedule, checkpoints, metrics.

This package depends neither on the cluster nor on the files that rows come from. Import from its modules:
`loop.fit` is the training loop, and `bert_flow` trains the transform of BERT-flow.
"""
