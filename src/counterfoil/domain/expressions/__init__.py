"""CEL expressions and patterns, of which predicates of steps and conditions of policies are made."""
