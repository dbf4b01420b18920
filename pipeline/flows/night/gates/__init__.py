"""The gates of a night: each measures a candidate or its corpus before it is published."""
