"""Approvals: reviewers decide before a dispatch."""
