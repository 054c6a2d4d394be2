"""One work item: reports, replies and deadlines, retries, receipts and rate limits."""
