"""Effects: unknown outcomes that are asked for and settled, and keys whose results work items share."""
