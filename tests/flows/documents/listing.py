"""What lies below a store's root, asked again and again from where that store can be reached: a root per line
in, JSON of path: [etag, time] per line out.
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
