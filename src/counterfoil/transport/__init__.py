"""Outbound HTTP: one session, the egress rules, signatures, and the result of a request as a ``Reply``."""

from counterfoil.transport.egress import EgressDenied, EgressPolicy
from counterfoil.transport.http import HttpTransport
from counterfoil.transport.signing import Signer, Verifier

__all__ = ["EgressDenied", "EgressPolicy", "HttpTransport", "Signer", "Verifier"]
