"""Callbacks of vendors: their signatures, and what their payloads mean for a step."""
