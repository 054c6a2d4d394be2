"""Subscriptions: which events are delivered to which URL."""
