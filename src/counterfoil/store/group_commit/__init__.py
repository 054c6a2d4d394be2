"""Group commit: many commands share one transaction."""
