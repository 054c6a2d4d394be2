"""Approvals: people in front of a dispatch."""
