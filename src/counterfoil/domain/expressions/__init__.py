"""CEL expressions and patterns, used by predicates of steps and conditions of policies."""
