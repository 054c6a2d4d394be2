"""Dedup stores: one protocol, and three places to keep reservations and outcomes."""
