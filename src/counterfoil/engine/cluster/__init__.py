"""This node among others: its lease, and notifications between nodes."""
