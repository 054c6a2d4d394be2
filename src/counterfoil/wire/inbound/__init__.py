"""Shapes of what comes from outside: hooks."""
