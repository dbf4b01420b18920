"""Jobs: one thin file per command."""
