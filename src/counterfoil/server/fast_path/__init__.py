"""The code that relies on aiohttp's insides: framing, the protocol, and the fast path of the webhook."""
