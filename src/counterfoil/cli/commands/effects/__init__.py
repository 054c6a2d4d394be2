"""Commands about effects: unknown outcomes of work items, and reservations of tools."""
