"""The doctor: what must be true of every database."""
