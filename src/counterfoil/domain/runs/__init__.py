"""Run keys: which flow owns a key, and what a start with the key of another flow is answered."""
