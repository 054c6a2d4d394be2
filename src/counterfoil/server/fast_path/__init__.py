"""The only code that relies on aiohttp's internals: framing, the protocol, and the express lane of the webhook.

With ``fast_path = false`` nothing of it is imported, and server/plain.py serves instead.
"""
