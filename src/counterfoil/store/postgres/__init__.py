"""The store of many nodes: PostgreSQL, by asyncpg (``pip install counterfoil[postgres]``)."""
