"""Each JSON shape of the API, declared once: the engine returns it, OpenAPI publishes it, the client re-exports it.

Every shape is a ``TypedDict``: building one costs no more than a dict, mypy compares what the engine builds with the
declaration, and a program that receives it reads plain JSON. Nothing is validated when an answer is sent or received;
the tests compare real answers of every route with the published document.
"""
