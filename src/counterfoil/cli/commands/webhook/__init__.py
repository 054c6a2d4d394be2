"""Commands about what arrives from outside."""
