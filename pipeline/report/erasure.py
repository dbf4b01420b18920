"""Render the receipt of an erasure as a page. It has no id and no text of an erased row."""

from pipeline.report.page import render_template
from pipeline.store.releases.erasures import ErasureReceipt

_SHOWN = 200  # files in each table; all are in the receipt


def render_receipt(receipt: ErasureReceipt, root: str) -> str:
    """Render the page; all values are escaped.

    Args:
        root: URI of the root.
    """
    tables = [
        ("Files before, which are removed", receipt.before),
        ("Files in their place", receipt.after),
    ]
    return render_template(
        "erasure.html.j2",
        {},
        receipt=receipt,
        root=root,
        tables=[(heading, files[:_SHOWN], len(files)) for heading, files in tables],
    )
