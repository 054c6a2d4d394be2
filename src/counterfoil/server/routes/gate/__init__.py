"""Routes of agents: workflows, their steps at the gate, and checkpoints."""
