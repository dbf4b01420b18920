"""Draw charts as inline SVG for HTML reports.

There is one module per report; `frame` has the axes and shapes that all charts use. Colours are CSS classes
of the page, so that charts follow its theme.
"""
