"""The kinds of records, and how each is loaded and written."""
