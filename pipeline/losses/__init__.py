"""Loss functions of vectors: they take tensors and return a scalar, without a model or state.

A loss that compares rows with each other (contrastive, momentum, context, divergence of similarities) needs
the vectors of the whole batch, of all ranks and chunks; the other losses are means over rows. Every loss is
computed in float32 or wider, under autocast too. Each module has the losses of one kind, even if a single
objective uses them.
"""
