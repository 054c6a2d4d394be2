"""Callbacks: what vendors sign and mean, and the inbox of everything that arrived."""
