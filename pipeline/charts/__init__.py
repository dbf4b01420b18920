"""Charts as inline SVG, for HTML reports.

One module per report; `frame` has axes and marks. Colours are CSS classes of the page, so that charts follow
its theme.
"""
