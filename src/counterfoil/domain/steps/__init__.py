"""Steps: definitions, attributes, values and the register."""
