"""Plan an index, train it, fill it part by part, and merge the parts."""
