"""Shapes of the gate: calls of agents, and workflows."""
