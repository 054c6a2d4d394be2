"""Structured logs and metrics of a running engine, for its operators."""
