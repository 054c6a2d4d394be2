"""The calls of the client, a class for each concept. ``Client`` has them all."""
