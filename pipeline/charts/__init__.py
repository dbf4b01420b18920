"""Charts as inline SVG, for the pages that people read."""
