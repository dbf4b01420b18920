"""Describe an encoder by values, without torch: its family, architecture, names of tensors and pooling."""
