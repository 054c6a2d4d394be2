"""Commands for policies, and the file that policies may come from."""
