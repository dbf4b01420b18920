"""Statistics of vectors and texts: moments that merge, spectra, drift, geometry, correlations, samples.

Import from the modules. The numerics are numpy and do not depend on the cluster; `tensors` is the file format
of small arrays.
"""
