"""A small HTTP service over the current release of a root.

`service` has the routes for programs, `messages` their bodies, `problems` the errors, and `page` the routes
for people. `batches` answers concurrent searches together, and `follow` swaps to newer releases. `access`
checks requests by `tokens`, which limit some of them to a part of the rows. `canary` tries a new release with
a share of the searches; `shadow` compares another release off their path, in a `shadow_process`, by
`comparisons`.
"""
