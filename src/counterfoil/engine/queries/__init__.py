"""Reads: what the API shows of steps, flows, work, workflows and the journal."""
