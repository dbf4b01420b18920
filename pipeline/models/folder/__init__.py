"""Read encoder folders: their modules, files and settings. No module imports torch at import time.

Other packages import `open_folder`, `EncoderFolder`.
"""
