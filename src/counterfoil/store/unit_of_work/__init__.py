"""The unit of work of one batch: what it loads, drafts, writes and rolls back."""
