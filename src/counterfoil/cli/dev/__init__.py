"""``counterfoil dev``: commands for the development of workers."""
