"""Commands for flows: start, cancel, redrive, deadlines, pruning."""
