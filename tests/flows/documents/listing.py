"""List the files below the root of a store, from a machine that can reach it: reads one root per line, and
writes one JSON object of path: [etag, time] per line.
"""

import json
import sys

from pipeline.store.store import open_store


def main() -> None:
    for line in sys.stdin:
        print(
            json.dumps(
                {entry.path: (entry.stamp, entry.modified) for entry in open_store(line.strip()).list()}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
