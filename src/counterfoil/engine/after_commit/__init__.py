"""What follows from a commit: handlers that the group commit calls in their order, each for one concern.

A handler is given what was committed, never what was asked for. One that has nothing to do returns after one look at
the kinds of the events, or at an empty collection.
"""
