"""Commands for subscriptions, and the delivery of their messages."""
