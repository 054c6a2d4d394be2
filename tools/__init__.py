"""Tools of the workshop, beside the tests: what ``make audit`` runs."""
