"""Policies: rules in front of a dispatch."""
