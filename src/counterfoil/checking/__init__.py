"""Slow checks of values against JSON Schema, made in a separate process that can be killed."""
