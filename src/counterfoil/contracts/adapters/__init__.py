"""Tool contracts in the shapes that model providers and agent frameworks expect; none of their packages is needed.

One module for each: ``openai``, ``anthropic``, ``mcp`` and ``langchain``. All have the same two parts: a definition for
the model, made of ``contract.model_schema()`` and so without an idempotency key, and a way to make the call that the
model asked for. Arguments come from the model; conversation and step (``AgentStep``) come from the runtime, which keeps
them over its retries. Arguments that hold an idempotency key are refused.
"""

from counterfoil.contracts.adapters.answers import AgentStep, AnyContract, ToolAnswer, answer_of

__all__ = ["AgentStep", "AnyContract", "ToolAnswer", "answer_of"]
