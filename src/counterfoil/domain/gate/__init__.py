"""The gate for agents: calls, claims, completion, workflows and retry_context."""
