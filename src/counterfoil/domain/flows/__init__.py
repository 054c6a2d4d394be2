"""Flows: start, plan, settle, run steps, fan out, end, compensate and redrive."""
