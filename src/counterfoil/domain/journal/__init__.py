"""The journal: events, and how they change records."""
