"""Sweeps: each is a search for what is due, and a command for each item found."""
