"""Read encoder folders: their modules, files and settings. No module imports torch at import time.

From outside: `open_folder`, `EncoderFolder`.
"""
