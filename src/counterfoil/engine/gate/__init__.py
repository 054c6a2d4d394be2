"""Workflows of agents: commands for the gate, reports, claims and endings, and the service that submits them."""
