"""Pages for people: each one HTML file with everything inside; no network, no script."""
