"""Policies: rules that are evaluated before a dispatch."""
