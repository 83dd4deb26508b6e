"""Secure aggregation at real sites: the server learns the sum of their replies.

The protocol is that of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving
Machine Learning", CCS 2017, on the complete graph of a round's clients, which Bell et al., "Secure
Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, thin out. A round has four
steps, each a message to every client and its answer:

    keys      two public keys, new in every round
    shares    of a seed and of the masking key, one for each other client, sealed for it
    train     the reply, masked: + own seed's stream, +- one stream for each other client
    unmask    of each client whose reply came, the share of its seed; of each that was lost, the
              share of its masking key

`masking.py` has the arithmetic, `member.py` a client's half, `conductor.py` the server's.
"""
