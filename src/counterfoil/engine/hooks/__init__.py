"""Hooks: payloads from outside for steps that wait."""
