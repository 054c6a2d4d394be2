"""The pure core: states, decisions and rules. No I/O, no clock, no async."""
