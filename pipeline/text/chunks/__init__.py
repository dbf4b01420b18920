"""Cut long texts into chunks that fit an encoder."""
