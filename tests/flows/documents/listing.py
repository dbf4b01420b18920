"""List the files below the roots of stores, from a machine that can reach the stores.

Each line of standard input is a root; each line of standard output is its files as JSON, path: [etag, time].
"""

import json
import sys

from pipeline.store.files.open_store import open_store


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
