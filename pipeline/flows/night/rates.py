"""Rates from which the cost of a night is predicted.

CPU times are of one core of an AMD EPYC (Zen 5), printed by `python -m tests.benchmarks.rates` unless a
comment names another command. A product is one multiplication with its addition; a value is one component of
a vector.
"""

from pipeline.index.sample import SAMPLE_SIZES
from pipeline.stats.moments import MERGE_GROUP

# Starting the command and Ray: `python -m tests.benchmarks.night captions`.
START_S = 5.0
# Time of an item in Ray, and of a unit beside its rows: 400 units of 10 rows against one of 4,000, see
# tests/benchmarks/README.md, "Nights after the first".
RAY_S_PER_ITEM, UNIT_S = 0.008, 0.025
# Listing, storing and publishing the records of a unit, on the driver: `python -m tests.benchmarks.units`.
DRIVER_S_PER_UNIT = 0.0004
# Gates beside those of each row: `python -m tests.benchmarks.night captions`.
GATES_S = 1.6

INGEST_NS_PER_ROW, INGEST_NS_PER_BYTE = 2_600.0, 11.3
INGEST_COPIES = 4  # the input is read; its temporary copy is written and read; units are written
MOMENTS_NS_PER_PRODUCT, MERGE_NS_PER_PRODUCT = 0.031, 8.1
HASH_NS_PER_BYTE = 0.67
WRITE_NS_PER_BYTE, READ_NS_PER_BYTE = 2.0 + HASH_NS_PER_BYTE, 1.9 + HASH_NS_PER_BYTE
ID_NS = 1_000.0  # hashing an id, by which rows are sampled
PILOT_NS_PER_VALUE = 230.0
KMEANS_PRODUCTS_PER_S = 3.9e10
TRUTH_PRODUCTS_PER_S = 2.2e10
FLAT_PRODUCTS_PER_S = 3.7e10
# Comparing rows with groups of centroids, at 16,384 lists.
GROUPED_PRODUCTS_PER_S = 2.06e10
# Building a graph of 16,384 centroids; with more, a centroid takes longer by the logarithm of their number
# (Malkov and Yashunin 2018, 4.2).
GRAPH_BUILD_NS_PER_VALUE, GRAPH_LISTS = 1_189.0, 16_384
MEAN_NS_PER_VALUE = 0.81  # computing a centroid, the mean of the rows of a list
CODE_NS_PER_VALUE, RABITQ_NS_PER_VALUE = 6.0, 17.0
MERGE_NS_PER_BYTE = 8.2
CHECK_NS_PER_ROW = 110.0
SCAN_NS_PER_VALUE = 0.3  # of uncompressed vectors; codes take less
GATES_NS_PER_ROW = 290.0

# k-means of faiss on one Tesla P100, published: a million rows of 256 dimensions, 20,000 centroids and 25
# rounds in 55 s (https://github.com/facebookresearch/faiss/wiki/Low-level-benchmarks). Not measured here.
GPU_KMEANS_PRODUCTS_PER_S = 1e6 * 256 * 20_000 * 25 / 55
# Network of a node, assumed: 10 Gbit/s, to a store that is never the bottleneck.
NODE_BYTES_PER_S = 1.25e9
# Time of a small request to an object store, assumed, and requests that a process makes at a time.
REQUEST_S, REQUESTS_AT_ONCE = 0.025, 16

# Sizes that the night itself uses. A row that is read has 65 bytes beside its text: a short id, two digests
# and numbers.
PART_BYTES, PART_ROW_BYTES = 64 << 20, 65
SAMPLED_ROWS, TRAIN_SAMPLE_ROWS = sum(SAMPLE_SIZES.values()), SAMPLE_SIZES["train"]
UNITS_PER_MERGE = MERGE_GROUP
KMEANS_ROUNDS, REFINING_ROUNDS, GROUPS_PER_ROW = 10, 8, 8
PILOT_UNITS, PILOT_ROWS = 1_000, 200_000
TEXT_UNITS = 256  # corpus units that whitening's texts are sampled from
# Lists that the search for the effort visits in all (nprobe 1, 2, 3, 4, 6 ... 96), and passes over the parts
# of an index, which each search at four of these efforts.
VISITED_LISTS, MEASURE_PASSES = 400, 8
