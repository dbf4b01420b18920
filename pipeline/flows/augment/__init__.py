"""Writing variants of the rows of a corpus, by rules on one core or by models on workers.

From outside: `augment`.
"""
