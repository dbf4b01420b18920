"""A night from the corpus to the published release, and everything that looks at one: plan, preflight,
report, comparison.

From outside: `nightly`, `plan`, `preflight`.
"""
