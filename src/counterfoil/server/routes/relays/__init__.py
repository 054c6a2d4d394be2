"""``/api/v1/relays``: workers that cannot be reached pull their requests, and reply to them."""
