"""Hooks: steps that call nothing, register a token and wait for payloads from outside."""
