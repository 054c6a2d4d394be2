"""Benchmarks: ratios of two measurements of the same run. ``make bench`` runs them all."""
