"""Commands and services for work items: claim, dispatch, complete, expire."""
