"""Effects: idempotency keys."""
