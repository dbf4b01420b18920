"""Files of a published index without some of its rows, and without any value that only these rows have."""
