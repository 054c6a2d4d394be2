"""``counterfoil demo``: an engine, misbehaving workers, and a summary."""
