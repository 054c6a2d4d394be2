"""The store: durable state, committed in groups."""
