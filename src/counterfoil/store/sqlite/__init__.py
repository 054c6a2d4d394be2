"""The embedded store: one SQLite file, one writing process."""
