"""Read the files of a published index: its parts, ids, texts and raw vectors."""
