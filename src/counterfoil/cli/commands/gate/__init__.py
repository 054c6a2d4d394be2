"""Commands about agents: gate calls and workflows."""
