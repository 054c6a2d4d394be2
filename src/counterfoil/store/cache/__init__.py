"""What a node keeps in memory between batches: definitions, and open flows."""
