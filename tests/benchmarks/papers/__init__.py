"""Published orderings of sentence-embedding methods, beside ours from one common start.

A claim is data: a paper's table, how each row is run, and the orderings that the paper claims. There is one
module for each group of papers; `claim` has the types.
"""
