"""A small HTTP service over the current release of a root.

`service` has the routes for programs, `messages` their bodies, `problems` the errors, and `page` the routes
for people. `batches` answers concurrent searches together, `follow` swaps to newer releases, and `access`
checks requests.
"""
