"""Benchmarks: ratios of two things measured in the same run. ``make bench`` runs them all."""
