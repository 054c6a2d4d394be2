"""What operators see of a running engine: structured logs and metrics."""
