"""Kinds of what comes from outside: hooks."""
