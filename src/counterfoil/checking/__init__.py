"""Checks of values against JSON Schema that may take long: in a process of their own, which can be given up."""
