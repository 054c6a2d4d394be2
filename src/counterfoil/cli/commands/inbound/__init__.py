"""Commands about what comes from outside: hooks."""
