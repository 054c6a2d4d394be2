"""Commands for approvals, and warnings of approvals that cannot be given."""
