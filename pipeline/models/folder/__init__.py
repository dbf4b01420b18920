"""Reading encoder folders: which modules, which files, which settings. Nothing in here imports torch.

From outside: `open_folder`, `EncoderFolder`.
"""
