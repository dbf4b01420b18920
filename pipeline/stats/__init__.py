"""Statistics of vectors: moments that merge, spectra, drift, and the samples that the report draws."""
